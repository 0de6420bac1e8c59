"""The cores and GPUs of this machine, and the home directory of the user. Nothing here imports PyTorch."""
