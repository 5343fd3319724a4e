"""Computing on secret shares: two compute servers and a dealer, over the integers modulo 2^64.

A value v is two random-looking words with v = v0 + v1; server i holds v_i. Adding shares adds the
values, so linear operations are local. Other operations cost one item of *material* from the dealer
and one opening of *masked* values between the servers. Five ideas suffice:

1. **Product** (Beaver). The dealer shares random a, b and c = f(a, b) for a bilinear f. The servers
   open e = x - a and d = y - b, both uniform. Then f(x, y) = c + f(e, b) + f(a, d) + f(e, d).
2. **Truncation**. The dealer shares random r, r >> f and its top bit. The servers open x + r.
3. **Comparison**. The dealer shares random r and its bits. The servers open c = x + r. The borrow
   of c - r is a tree of ANDs over shared bits, and gives the sign of x.
4. **Fixed point**. A real v is round(v * 2^16); a product has 32 fraction bits until truncated.
5. **Programs** are functions that both servers run with the same public arguments. No length, no
   branch, no number of rounds depends on a secret.

Knowledge of the parties: a server sees its shares and openings under fresh masks, all uniform; the
dealer sees shapes only. **The dealer together with either server sees everything.** All three
follow the protocol (semi-honest): a wrong value is not detected, a replayed or misdirected message
is.
"""

from cloister.federation.transports.links import Link, local_links
from cloister.shares.mpc.compare import negative, relu, select
from cloister.shares.mpc.dealer import Dealer, Supply
from cloister.shares.mpc.functions import (
    argmax,
    argmax_one_hot,
    clip,
    divide,
    exp,
    maximum,
    reciprocal,
    sigmoid,
    softmax,
    tanh,
)
from cloister.shares.mpc.local import run_here
from cloister.shares.mpc.products import (
    convolve,
    matmul,
    multiply,
    polynomial,
    scale,
    square,
    times,
    truncate,
)
from cloister.shares.mpc.server import Cost, Server
from cloister.shares.mpc.shares import FRAC_BITS, combine, decode, encode, expand_share, split

__all__ = [
    "FRAC_BITS",
    "Cost",
    "Dealer",
    "Link",
    "Server",
    "Supply",
    "argmax",
    "argmax_one_hot",
    "clip",
    "combine",
    "convolve",
    "decode",
    "divide",
    "encode",
    "exp",
    "expand_share",
    "local_links",
    "matmul",
    "maximum",
    "multiply",
    "negative",
    "polynomial",
    "reciprocal",
    "relu",
    "run_here",
    "scale",
    "select",
    "sigmoid",
    "softmax",
    "split",
    "square",
    "tanh",
    "times",
    "truncate",
]
