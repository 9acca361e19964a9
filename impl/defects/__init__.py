"""Known defects: our own allocators with one small fault each, to see that the suite finds what it must."""
