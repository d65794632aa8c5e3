"""Where results come from and how they reach the disk: manifests, and files and folders that are whole or not there."""
