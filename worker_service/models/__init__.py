"""Model families, written natively on torch."""
