"""The protocol, free of I/O: bytes in, bytes out; a transport carries them."""
