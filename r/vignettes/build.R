# Writes datashield.Rmd with its numbers: Rscript r/vignettes/build.R, after an installation of cloisterr.
# It needs the command cloister, and the package DSLite or its data in the folder of the variable CNSIM.
here <- dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)))
setwd(here)
knitr::knit("datashield.Rmd.orig", "datashield.Rmd", quiet = TRUE)
