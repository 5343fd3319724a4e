vector_of <- function(name) {
  path <- test_path("vectors", paste0(name, ".json"))
  jsonlite::fromJSON(path, simplifyVector = FALSE)
}

# Intervals that Python found from the same release, in the order of R and without references.
intervals_of <- function(vector, kind, part = vector$coefficients) {
  ends <- vapply(vector$intervals[[kind]], function(side) {
    vapply(side, cloisterr:::number_of, 0)
  }, numeric(length(part$coef)))
  last <- nrow(ends)
  order <- c(last, seq_len(last - 1))
  ends[order, ][!unlist(part$reference)[order], ]
}

skip_without_command <- function() {
  skip_if_not(cloisterr:::has_command(), "the command cloister is not on the path")
}

clinic <- function(silo, n = 1500) {
  set.seed(silo)
  age <- round(runif(n, 20, 90), 1)
  arm <- sample(c("placebo", "drug"), n, TRUE)
  margin <- 0.05 * (age - 60) + 0.5 * (arm == "drug")
  data.frame(
    age = age, arm = arm, ill = rbinom(n, 1, plogis(margin)) == 1,
    pressure = round(90 + 0.5 * age + 3 * (arm == "drug") + 4 * silo + rnorm(n, 0, 10), 1)
  )
}
