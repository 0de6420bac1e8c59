"""Services that speak as clients of other servers expect it: a folder for each, and here what they share."""
