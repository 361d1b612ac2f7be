"""What coordinator and worker share: values, the seam, codecs, channels, RPC plumbing."""
