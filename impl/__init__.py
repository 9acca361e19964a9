"""What is checked: the production allocators and their kernels, and adapters that let others be driven."""
