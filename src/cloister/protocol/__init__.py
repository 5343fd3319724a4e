"""The protocol, without I/O: bytes in, bytes out; a transport carries them."""
