"""What goes with products: batches, prepared matrices, arrays without copies, libgemm."""
