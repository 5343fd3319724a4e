test_that("options are those of the command", {
  options_of <- cloisterr:::options_of
  given <- list(max_loss = 0.1, silos = c("a", "b"), no = NULL, not_private = TRUE, f = FALSE)
  expect_equal(
    options_of(given), c("--max-loss", "0.1", "--silos", "a,b", "--not-private")
  )
  expect_equal(cloisterr:::number_text(c(15000, 1e5, 0.1, 1 / 3)),
    c("15000", "100000", "0.1", "0.3333333333333333"))
  expect_error(options_of(list(1)), "names")
  settings <- cloisterr:::settings_of(list(a = TRUE, b = "x", c = list("u")))
  expect_equal(settings, c("--set", "a=true", "--set", "b=\"x\"", "--set", "c=[\"u\"]"))
})

test_that("an absent command is an error that names the way", {
  withr_options <- options(cloisterr.command = "no-such-cloister")
  on.exit(options(withr_options))
  expect_error(dp_schema(dataset = "d", x = c(0, 1)), "pip install", class = "cloister_error")
})

test_that("columns of a schema are read from R", {
  table <- cloisterr:::column_table
  expect_equal(table("x", c(0, 1.5))[3:6],
    c("name = \"x\"", "type = \"number\"", "min = 0", "max = 1.5"))
  expect_equal(table("x", c(0L, 9L))[4], "type = \"integer\"")
  expect_equal(table("x", "boolean")[4], "type = \"boolean\"")
  expect_equal(table("x", c("a", "b"))[5], "categories = [\"a\", \"b\"]")
  expect_error(table("x", 1), "must be like")
})

test_that("data are files or named frames", {
  expect_error(cloisterr:::files_of(list(data.frame(x = 1))), "named list")
  found <- cloisterr:::files_of(list(a = data.frame(x = c(1, NA)), b = data.frame(x = TRUE)))
  expect_equal(basename(found$paths), c("a.csv", "b.csv"))
  expect_equal(readLines(found$paths[1]), c("\"x\"", "1", ""))
  unlink(found$folder, recursive = TRUE)
})

test_that("three silos answer from schema to prediction", {
  skip_without_command()
  folder <- tempfile("clinic")
  dir.create(folder)
  on.exit(unlink(folder, recursive = TRUE))
  ledger <- file.path(folder, "ledger.db")
  silos <- list(north = clinic(1), east = clinic(2), south = clinic(3))
  schema <- dp_schema(
    dataset = "clinic", age = c(0, 120), arm = c("placebo", "drug"), pressure = c(50, 250),
    ill = "boolean"
  )
  expect_match(schema$digest, "^[0-9a-f]{64}$")
  plan <- dp_plan(pressure ~ age + arm + site, schema = schema, epsilon = 2, nominal_n = 4500)
  expect_equal(plan$epsilon, 2)
  expect_output(print(plan), "rounds   5")
  fit <- dp_lmer(
    pressure ~ age + arm + (1 | site), silos, schema,
    epsilon = 2, nominal_n = 4500, ledger = ledger, cap_epsilon = 9
  )
  # Ten deviations: noise has no seed here.
  expect_lt(abs(coef(fit)[["arm=drug"]] - 3), 10 * sqrt(vcov(fit)["arm=drug", "arm=drug"]))
  one <- data.frame(age = c(50, NA), arm = "drug")
  expect_equal(is.na(predict(fit, one, silo = "north")), c(FALSE, TRUE))
  expect_error(predict(fit, one), "silo")
  # A schema of another unit, and a budget that is spent.
  refused <- tryCatch(
    dp_glm(ill ~ age, binomial, silos, schema, epsilon = 20, nominal_n = 4500, ledger = ledger),
    error = identity
  )
  expect_equal(refused$status, 5L)
  table <- dp_table1("arm", silos, schema, epsilon = 1, nominal_n = 4500, ledger = ledger)
  expect_true(all(c("table", "row", "value", "low") %in% names(table)))
  expect_output(print(table), "Groups")
})

test_that("hazard ratios have intervals", {
  skip_without_command()
  silos <- lapply(c(north = 1, east = 2, south = 3), function(silo) {
    records <- clinic(silo)
    days <- rexp(nrow(records), 0.002 * exp(0.7 * (records$arm == "drug")))
    data.frame(days = pmin(round(days), 1000), dead = days < 1000, arm = records$arm)
  })
  schema <- dp_schema(
    dataset = "c", days = c(0, 1000), dead = "boolean", arm = c("placebo", "drug")
  )
  found <- dp_cox(
    Surv(days, dead) ~ arm + strata(site), silos, schema,
    epsilon = 4, nominal_n = 4500, ledger = tempfile(fileext = ".db"), cap_epsilon = 9
  )
  ratio <- found[found$row == "arm=drug", ]
  expect_equal(nrow(ratio), 1)
  expect_lt(ratio$low, ratio$high)
  # Noise has no seed here: an interval of ten deviations, in place of two.
  expect_lt(abs(log(ratio$value) - 0.7), 5 * log(ratio$population_high / ratio$value))
})

test_that("missing cells are completed from schema to prediction", {
  skip_without_command()
  lacking <- function(silo) {
    records <- clinic(silo, 6000)
    weight <- 60 + 0.2 * records$age + rnorm(6000, 0, 12)
    records$pressure <- records$pressure + 0.3 * weight
    records$weight <- ifelse(runif(6000) < plogis((records$pressure - 160) / 10), NA, weight)
    records
  }
  silos <- list(north = lacking(1), east = lacking(2), south = lacking(3))
  kept <- list(type = "number", min = 0, max = 150, missing = "keep")
  schema <- dp_schema(
    dataset = "c", age = c(0, 120), arm = c("placebo", "drug"), pressure = c(50, 250), weight = kept
  )
  ledger <- tempfile(fileext = ".db")
  options <- list(target = "pressure", covariates = list("age", "weight"))
  plan <- dp_plan(
    "imputed-regression", schema = schema, epsilon = 4, nominal_n = 18000, options = options
  )
  expect_equal(plan$rounds, 10)
  expect_warning(
    fit <- dp_imputed(
      pressure ~ age + weight, gaussian, silos, schema,
      epsilon = 4, nominal_n = 18000, ledger = ledger, cap_epsilon = 9
    ),
    "no covariate is known to be the silo"
  )
  # Ten deviations: noise has no seed here.
  expect_lt(abs(coef(fit)[["weight"]] - 0.3), 10 * sqrt(vcov(fit)["weight", "weight"]))
  truth <- mean(is.na(unlist(lapply(silos, `[[`, "weight"))))
  expect_lt(abs(fit$lacking["weight", "share"] - truth), 10 * diff(fit$lacking["weight", 1:2]) / -1.96)
  rows <- data.frame(age = c(50, 60), weight = c(70, NA))
  found <- predict(fit, rows)
  expect_equal(found[1], sum(coef(fit) * c(1, 50, 70)), tolerance = 0.01)
  expect_true(is.na(found[2]))
  expect_output(print(fit), "cells completed: weight")
  wrong <- tryCatch(
    dp_imputed(
      pressure ~ age, gaussian, silos, schema,
      epsilon = 4, nominal_n = 18000, ledger = ledger
    ),
    error = identity
  )
  expect_match(conditionMessage(wrong), "missing = 'keep'")
})

test_that("the effect of a treatment has a task", {
  skip_without_command()
  tasks <- cloisterr:::run_command("tasks")
  skip_if_not("treatment-effect" %in% unlist(lapply(tasks$tasks, `[[`, "task")), "no such task yet")
  silos <- list(north = clinic(1), east = clinic(2), south = clinic(3))
  schema <- dp_schema(dataset = "c", age = c(0, 120), arm = c("placebo", "drug"), ill = "boolean")
  ledger <- tempfile(fileext = ".db")
  expect_warning(
    found <- dp_effect(
      "arm", "ill", "age", silos, schema,
      epsilon = 4, nominal_n = 4500, ledger = ledger, cap_epsilon = 9
    ),
    "no covariate is known to be the silo"
  )
  expect_gt(nrow(found), 0)
})
