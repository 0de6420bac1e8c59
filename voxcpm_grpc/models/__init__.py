"""The interface of a model, and a folder for each family. A family imports no other."""
