"""What heads compute, written from the equations and apart from the package: producers of files, and a reference."""
