"""Where results come from and how they reach the disk: manifests, and files and folders that are complete or absent."""
