"""What every step computes: plain values in, plain values out, no I/O, no clock, no await."""
