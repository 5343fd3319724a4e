library(testthat)
library(cloisterr)

test_check("cloisterr")
