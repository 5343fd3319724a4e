text <- function(formula) cloisterr:::formula_text(formula)

test_that("formulas are written in the language of cloister", {
  vectors <- jsonlite::fromJSON(test_path("vectors", "formulas.json"))
  for (formula in names(vectors)) {
    expect_equal(text(stats::as.formula(formula)), vectors[[formula]])
  }
})

test_that("a category has the levels of the schema", {
  expect_error(text(y ~ C(arm, contr.sum)), "a category must be like")
  expect_error(text(y ~ factor(arm, levels = 1:3)), "a category must be like")
})

test_that("knots and edges are public numbers", {
  knots <- c(40, 60)
  expect_equal(text(y ~ bs(age, knots = knots, degree = 2)), "y ~ bs(age, knots=[40, 60], degree=2)")
  expect_error(text(y ~ cut(age, breaks = c(0, 40, 65))), "-Inf to Inf")
  expect_error(text(y ~ cut(age, 3)), "public edges")
  expect_error(text(y ~ bs(age, df = 4)), "public knots")
  expect_error(text(y ~ bs(age, knots = nowhere)), "public numbers")
})

test_that("what is not in the list is refused by name", {
  expect_error(text(D$y ~ D$x), "age in place of D\\$age")
  expect_error(text(y ~ poly(age, 2)), "I\\(age\\^2\\)")
  expect_error(text(y ~ scale(age)), "public numbers")
  expect_error(text(y ~ sin(age)), "must not have 'sin\\(age\\)'")
  expect_error(text(y ~ log(age, 2)), "must not have")
  expect_error(text(y ~ I(age^0.5)), "sqrt")
  expect_error(text(y ~ .), "names of columns")
  expect_error(text(y ~ x + (1 | site)), "dp_lmer")
  expect_error(text(~x), "target")
  expect_error(text("y ~ x"), "target")
})

test_that("families of R are those of cloister", {
  family <- cloisterr:::family_of
  expect_equal(family(binomial), list(family = "binomial"))
  expect_equal(family(Gamma("log")), list(family = "gamma"))
  expect_equal(family("negative_binomial"), list(family = "negative-binomial"))
  expect_error(family(Gamma()), "link 'log'")
  expect_error(family(binomial("probit")), "link 'logit'")
  expect_error(family(quasipoisson()), "family must be one of")
  skip_if_not_installed("MASS")
  expect_equal(family(MASS::negative.binomial(2))$alpha, 0.5)
})

test_that("a random intercept becomes the term site", {
  fixed <- function(formula) text(cloisterr:::fixed_formula(formula))
  expect_equal(fixed(y ~ x + (1 | site)), "y ~ x + site")
  expect_error(fixed(y ~ x + (x | site)), "only random term")
  expect_error(fixed(y ~ x), "once")
})

test_that("a model of completed cells has columns alone", {
  columns <- function(formula) cloisterr:::columns_of(cloisterr:::added(formula[[3]]))
  expect_equal(columns(y ~ age + (weight + factor(arm))), c("age", "weight", "arm"))
  expect_error(columns(y ~ age * weight), "joined by \\+ alone, got 'age \\* weight'")
  expect_error(columns(y ~ log(age)), "got 'log\\(age\\)'")
  expect_error(columns(y ~ .), "names of columns")
  expect_error(columns(y ~ age - weight), "names of columns")
  expect_error(cloisterr:::target_of(log(y) ~ age), "on its left")
  expect_error(cloisterr:::target_of(~age), "on its left")
  expect_equal(cloisterr:::target_of(`mean pressure` ~ age), "mean pressure")
})

test_that("a formula of hazards has a time, an event and covariates", {
  found <- cloisterr:::hazards_of(Surv(days, dead) ~ age + strata(site) + factor(arm))
  expect_equal(
    found,
    list(time = "days", event = "dead", covariates = list("age", "arm"), strata = "site")
  )
  expect_null(cloisterr:::hazards_of(Surv(days, dead) ~ age)$strata)
  expect_error(cloisterr:::hazards_of(days ~ age), "Surv\\(days, dead\\)")
  expect_error(cloisterr:::hazards_of(Surv(0, days, dead) ~ age), "Surv\\(days, dead\\)")
  expect_error(cloisterr:::hazards_of(Surv(days, dead) ~ strata(a) + strata(b) + age), "one strata")
  expect_error(cloisterr:::hazards_of(Surv(days, dead) ~ log(age)), "names of columns")
})
