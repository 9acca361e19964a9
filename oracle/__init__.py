"""What is right: operations as data, the reference allocators, and the judge. Standard library only."""
