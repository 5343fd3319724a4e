test_that("intervals are those of Python", {
  for (name in c("gaussian", "binomial", "poisson", "imputed")) {
    vector <- vector_of(name)
    fit <- cloisterr:::model_of(vector)
    for (type in c("noise", "total")) {
      # Python's intervals have 1.96 deviations.
      level <- 2 * pnorm(1.96) - 1
      found <- unname(confint(fit, level = level, type = type))
      expect_equal(found, intervals_of(vector, type), tolerance = 1e-6, info = name)
    }
  }
})

test_that("what is not known is NA, and possible everywhere", {
  fit <- cloisterr:::model_of(vector_of("binomial"))
  expect_named(coef(fit)[1], "(Intercept)")
  expect_true(is.na(coef(fit)[["arm=high"]]))
  expect_false("arm=placebo" %in% names(coef(fit)))
  expect_equal(fit$reference, "arm=placebo")
  expect_true(all(is.na(vcov(fit)["arm=high", ])))
  expect_equal(unname(confint(fit, "arm=high")), matrix(c(-Inf, Inf), 1))
  expect_equal(sum(is.na(coef(fit))), 1)
  expect_output(print(summary(fit)), "not known")
})

test_that("covariances add up", {
  fit <- cloisterr:::model_of(vector_of("gaussian"))
  expect_equal(vcov(fit), vcov(fit, "noise") + vcov(fit, "sampling"))
  expect_equal(dimnames(vcov(fit)), list(names(coef(fit)), names(coef(fit))))
  expect_true(isSymmetric(vcov(fit)[-3, -3], tol = 1e-8))
  expect_equal(dim(confint(fit, 1:2)), c(2L, 2L))
  expect_error(vcov(fit, "other"))
})

test_that("a random intercept has its own coefficients", {
  vector <- vector_of("gaussian")
  fit <- cloisterr:::mixed_of(cloisterr:::model_of(vector), y ~ x + (1 | site))
  mixed <- vector$coefficients$random_intercept
  found <- unname(confint(fit, level = 2 * pnorm(1.96) - 1))
  expect_equal(found, intervals_of(vector, "random_intercept", mixed), tolerance = 1e-6)
  expect_false(any(grepl("site", names(coef(fit)))))
  expect_lt(fit$tau[["tau_low"]], fit$tau[["tau"]])
  expect_output(print(fit), "between silos")
  expect_error(cloisterr:::mixed_of(cloisterr:::model_of(vector_of("poisson")), y ~ x), "three silos")
})

test_that("completed cells have their share and their cost", {
  vector <- vector_of("imputed")
  fit <- cloisterr:::model_of(vector)
  expect_s3_class(fit, c("dp_imputed", "dp_glm"), exact = TRUE)
  written <- vector$coefficients
  expect_equal(dimnames(fit$lacking), list("weight", c("share", "low", "high")))
  share <- unlist(written[c("lacking", "lacking_low", "lacking_high")], use.names = FALSE)
  expect_equal(unname(fit$lacking[1, ]), share)
  expect_named(fit$missing_information, names(coef(fit)))
  expect_equal(fit$missing_information[["weight"]], written$missing_information[[5]])
  # Neither that of the intercept nor that of a hidden coefficient is known.
  expect_equal(names(which(is.na(fit$missing_information))), c("(Intercept)", "arm=high"))
  expect_true(is.na(coef(fit)[["arm=high"]]))
  expect_equal(unname(confint(fit, "arm=high")), matrix(c(-Inf, Inf), 1))
  expect_output(print(fit), "cells completed: weight 23.5 % \\[23.1 %, 23.9 %\\]")
  expect_output(print(summary(fit)), "the models of cells")
})

test_that("without enough complete records nothing is known", {
  vector <- vector_of("imputed")
  hidden <- function(values) lapply(values, function(value) NULL)
  written <- vector$coefficients
  written$coef <- hidden(written$coef)
  written$known <- lapply(written$known, function(one) FALSE)
  for (part in c("noise_cov", "sampling_cov")) written[[part]] <- lapply(written[[part]], hidden)
  fit <- cloisterr:::model_of(list(coefficients = written))
  expect_true(all(is.na(coef(fit))))
  expect_true(all(is.na(vcov(fit))))
  expect_equal(unname(confint(fit)), matrix(c(-Inf, Inf), 5, 2, byrow = TRUE))
  expect_output(print(fit), "not known")
  expect_output(print(summary(fit)), "not known")
})

test_that("another version of the document is refused", {
  vector <- vector_of("poisson")
  vector$coefficients$contract <- 2L
  expect_error(cloisterr:::model_of(vector), "version 2", class = "cloister_error")
  expect_error(cloisterr:::model_of(list()), "no coefficients")
})

test_that("tidy and glance are tables", {
  skip_if_not_installed("generics")
  fit <- cloisterr:::model_of(vector_of("poisson"))
  found <- generics::tidy(fit, conf.int = TRUE, exponentiate = TRUE)
  expect_equal(found$term, names(coef(fit)))
  expect_equal(log(found$estimate), unname(coef(fit)))
  expect_equal(log(found$conf.low), unname(confint(fit)[, 1]))
  expect_equal(found$std.error, unname(sqrt(diag(vcov(fit)))))
  expect_equal(nrow(generics::glance(fit)), 1)
  expect_equal(nobs(fit), fit$n)
  expect_false("fmi" %in% names(found))
  completed <- cloisterr:::model_of(vector_of("imputed"))
  expect_equal(generics::tidy(completed)$fmi, unname(completed$missing_information))
})

test_that("predictions without a model are refused", {
  fit <- cloisterr:::model_of(vector_of("poisson"))
  expect_error(predict(fit, data.frame(age = 1)), "need the model")
})
