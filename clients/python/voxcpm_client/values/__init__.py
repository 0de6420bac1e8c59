"""Options and results of calls: frozen values of plain Python types. No message comes in."""
