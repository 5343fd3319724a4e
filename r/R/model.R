#' Fit a generalized linear model over several silos
#'
#' Runs `cloister run --task glm` over files, charges its privacy cost to a ledger, and returns the
#' released coefficients. Silos without a common machine use [dp_submit()].
#'
#' @section Formulas:
#' Terms are columns, `+ - * : / ^`, arithmetic in `I()`, `log`, `log1p`, `sqrt`, `exp`,
#' `factor(arm)`, `relevel(factor(arm), ref = "drug")`, `bs(age, knots = c(40, 60))`,
#' `cut(age, edges = c(40, 65))`, `offset(log(years))`, `exposure(years)`, and `site` for the silo
#' that holds a record. Others are refused, since knots and scales must be public numbers.
#'
#' @param formula A formula of R; see below.
#' @param family `"gaussian"`, `"binomial"`, `"poisson"`, `"gamma"` or `"negative-binomial"`, or a
#'   family of R with its canonical link (for `Gamma`, `"log"`).
#' @param data Paths of files, or a named list of data frames: each is a silo.
#' @param schema A [dp_schema()], or the path of one.
#' @param epsilon Privacy budget.
#' @param nominal_n Public number of records in all silos, from a contract or a report.
#' @param options List of further options of the task, such as `list(sandwich = TRUE)`.
#' @param ... Further options of `cloister run` by name: `delta`, `cap_epsilon` (lifetime cap of a
#'   data set that is new in the ledger), `ledger` (its path), `max_loss = 0.1` (share of the rows
#'   of a file that may be left out), or `out` (a folder that keeps report and model).
#' @return An object of class `dp_glm`; see [coef.dp_glm()].
#' @examples
#' \dontrun{
#' fit <- dp_glm(
#'   ill ~ age + arm + site, binomial, c("north.csv", "east.csv", "south.csv"), "clinic.toml",
#'   epsilon = 1, nominal_n = 15000, cap_epsilon = 3
#' )
#' summary(fit)
#' confint(fit)
#' }
#' @export
dp_glm <- function(formula, family = "gaussian", data, schema, epsilon, nominal_n,
                   options = list(), ...) {
  run <- list(epsilon = epsilon, nominal_n = nominal_n, ...)
  done <- run_task(question_of(formula, family, options), data, schema, run)
  model_of(done$document, done$model, schema_of(schema), formula)
}

#' Fit a linear model with a random intercept of each silo
#'
#' `(1 | site)` is the only random term. The model follows from one with the fixed term `site`, by
#' restricted maximum likelihood, at no further cost. It needs three silos or more.
#'
#' @param formula Such as `pressure ~ age + (1 | site)`.
#' @param ... As for [dp_glm()], except `family`.
#' @return An object of the classes `dp_lmer` and `dp_glm`. Predictions use the intercept of the
#'   silo that you name.
#' @export
dp_lmer <- function(formula, ...) {
  if (!inherits(formula, "formula") || length(formula) != 3) {
    refuse("formula must be like y ~ x + (1 | site).")
  }
  fit <- dp_glm(fixed_formula(formula), "gaussian", ...)
  mixed_of(fit, formula)
}

# The formula with the term site in place of (1 | site).
fixed_formula <- function(formula) {
  found <- 0L
  walk <- function(x) {
    if (!is.call(x)) return(x)
    inner <- if (identical(x[[1]], quote(`(`))) x[[2]]
    if (is.call(inner) && call_name(inner) == "|") {
      if (!identical(inner[[2]], 1) || !identical(inner[[3]], quote(site))) {
        refuse("the only random term is (1 | site), got ", source_of(x), ".")
      }
      found <<- found + 1L
      return(quote(site))
    }
    if (call_name(x) %in% c("+", "(")) x[-1] <- lapply(as.list(x)[-1], walk)
    x
  }
  formula[[3]] <- walk(formula[[3]])
  if (found != 1L) refuse("formula must have the term (1 | site) once.")
  formula
}

#' Fit a generalized linear model to records with missing cells
#'
#' `cloister run --task imputed-regression` fits a model of each incomplete column first. Then a
#' record that lacks a cell is replaced by the mean over its completed versions. Errors include
#' those of these models, as by Rubin's rules. [dp_glm()] leaves such records out, which biases
#' coefficients if the outcome decides who lacks cells.
#'
#' One or two columns of the formula, of numbers or of two categories, must have
#' `missing = "keep"` in the schema. The target is never completed, and each row is a unit of
#' privacy. If noise hides what the models of the cells need, all coefficients are `NA`.
#'
#' [dp_plan()] and [dp_submit()] take the name of the task in place of the formula, as
#' `"imputed-regression"` with `options = list(target = "pressure", covariates = list("age",
#' "weight"))`; [dp_result()] returns what this function does.
#'
#' @inheritParams dp_glm
#' @param formula Columns joined by `+`, such as `pressure ~ age + weight`, without other terms.
#' @param options List of further options of the task, such as
#'   `list(reference = list(arm = "drug"))`.
#' @return An object of the classes `dp_imputed` and `dp_glm`; see [coef.dp_glm()]. Further,
#'   `lacking` is a matrix with the share of records that lack each incomplete column, and its
#'   interval of the noise. `missing_information` is the part of a coefficient's variance over
#'   samples that missing cells add; [tidy.dp_glm()] has it as `fmi`.
#' @examples
#' \dontrun{
#' clinic <- dp_schema(
#'   dataset = "clinic", age = c(0, 120), pressure = c(50, 250),
#'   weight = list(type = "number", min = 20, max = 140, missing = "keep")
#' )
#' fit <- dp_imputed(
#'   pressure ~ age + weight, gaussian, c("north.csv", "east.csv", "south.csv"), clinic,
#'   epsilon = 1, nominal_n = 15000, cap_epsilon = 3
#' )
#' summary(fit)
#' }
#' @export
dp_imputed <- function(formula, family = "gaussian", data, schema, epsilon, nominal_n,
                       options = list(), ...) {
  columns <- list(target = target_of(formula), covariates = as.list(columns_of(added(formula[[3]]))))
  question <- question_of("imputed-regression", options = c(columns, family_of(family), options))
  run <- list(epsilon = epsilon, nominal_n = nominal_n, ...)
  done <- run_task(question, data, schema, run)
  model_of(done$document, done$model, schema_of(schema), formula)
}

target_of <- function(formula) {
  if (!inherits(formula, "formula") || length(formula) != 3 || !is.name(formula[[2]])) {
    refuse("formula must be like y ~ a + b, with the name of a column on its left.")
  }
  as.character(formula[[2]])
}

# The terms that a formula adds.
added <- function(x) {
  call <- if (is.call(x)) call_name(x) else ""
  if (call == "+" && length(x) == 3) return(c(added(x[[2]]), added(x[[3]])))
  if (call == "(") added(x[[2]]) else list(x)
}

# The name in a call such as `strata(site)`; NULL of other terms.
named_in <- function(x, call) {
  if (is.call(x) && call_name(x) == call && length(x) == 2 && is.name(x[[2]])) as.character(x[[2]])
}

# The columns of terms, each a name or `factor()` of one.
columns_of <- function(terms) {
  vapply(terms, function(x) {
    if (is.name(x) && x != quote(.)) return(as.character(x))
    name <- named_in(x, "factor")
    if (!is.null(name)) return(name)
    refuse("formula must have names of columns joined by + alone, got ", source_of(x), ".")
  }, "")
}

mixed_of <- function(fit, formula) {
  mixed <- fit$document$random_intercept
  if (is.null(mixed)) refuse("a random intercept needs three silos or more.")
  parts <- coefficients_from(mixed)
  fit[names(parts)] <- parts
  fit$tau <- vapply(mixed[c("tau", "tau_low", "tau_high")], number_of, 0)
  fit$formula <- formula
  class(fit) <- c("dp_lmer", class(fit))
  fit
}

# The words of a question: a task with its options, from a formula or the name of a task.
question_of <- function(what, family = "gaussian", options = list()) {
  if (is.character(what) && length(what) == 1) return(c("--task", what, settings_of(options)))
  of_family <- family_of(family)
  settings <- c(list(formula = formula_text(what)), of_family, options)
  c("--task", "glm", settings_of(settings))
}

LINKS <- c(
  gaussian = "identity", binomial = "logit", poisson = "log", gamma = "log",
  "negative-binomial" = "log"
)

# The family of a task, from a family of R or a name.
family_of <- function(family) {
  if (is.function(family)) family <- family()
  over <- NULL
  if (inherits(family, "family")) {
    name <- tolower(sub("\\(.*", "", family$family))
    if (name == "negative binomial") {
      name <- "negative-binomial"
      over <- list(alpha = 1 / get(".Theta", environment(family$variance)))
    }
    if (name %in% names(LINKS) && family$link != LINKS[[name]]) {
      refuse(
        "family ", name, " must have the link ", sQuote(LINKS[[name]], FALSE), ", got ",
        sQuote(family$link, FALSE), "."
      )
    }
  } else {
    name <- tolower(gsub("_", "-", family))
  }
  if (!name %in% names(LINKS)) {
    refuse("family must be one of ", paste(names(LINKS), collapse = ", "), ", got ", name, ".")
  }
  c(list(family = name), over)
}

# Runs a task over files, and returns its document and the text of its model.
run_task <- function(question, data, schema, run) {
  files <- files_of(data)
  if (files$temporary) on.exit(unlink(files$folder, recursive = TRUE))
  keep <- run$out
  out <- if (is.null(keep)) tempfile("cloister") else keep
  if (is.null(keep)) on.exit(unlink(out, recursive = TRUE), add = TRUE)
  run$out <- NULL
  document <- with_file(schema_of(schema)$text, function(path) {
    run_command(c(
      "run", files$paths, "--schema", path, "--out", out, question, options_of(run)
    ))
  }, ".toml")
  model <- file.path(out, "model.json")
  list(document = document, model = paste(read_lines(model), collapse = "\n"))
}

# Files of silos; data frames are written to a folder that is deleted after the run.
files_of <- function(data) {
  if (is.character(data)) return(list(paths = data, temporary = FALSE))
  if (is.data.frame(data)) data <- list(records = data)
  named <- is.list(data) && length(data) && !is.null(names(data)) && !anyDuplicated(names(data))
  if (!named || !all(vapply(data, is.data.frame, NA))) {
    refuse("data must be paths of files, or a named list of data frames, each a silo.")
  }
  folder <- tempfile("silos")
  dir.create(folder, mode = "0700")
  paths <- file.path(folder, paste0(names(data), ".csv"))
  for (i in seq_along(paths)) write_frame(data[[i]], paths[i])
  list(paths = paths, folder = folder, temporary = TRUE)
}

write_frame <- function(frame, path) {
  utils::write.csv(frame, path, row.names = FALSE, na = "", fileEncoding = "UTF-8")
}

# The document of coefficients ---------------------------------------------------------------------

CONTRACT <- 1L

# An object of class dp_glm from the document of a run or of a federated job.
model_of <- function(document, model = NULL, schema = NULL, formula = NULL) {
  written <- document$coefficients
  if (is.null(written)) refuse("this release has no coefficients of a regression.")
  if (!identical(as.integer(written$contract), CONTRACT)) {
    refuse(
      "the coefficients have version ", written$contract, ", and this package reads version ",
      CONTRACT, "; update one of them."
    )
  }
  facts <- list(
    family = written$family, link = written$link, target = written$target,
    n = number_of(written$n), n_half_width = number_of(written$n_half_width),
    residual_std = number_of(written$residual_std), epsilon = number_of(written$epsilon),
    delta = number_of(written$delta), digest = written$digest, silos = unlist(document$silos),
    formula = formula, document = written, model = model, schema = schema$text
  )
  fit <- structure(c(coefficients_from(written), facts), class = "dp_glm")
  if (is.null(written$incomplete)) fit else imputed_from(written, fit)
}

# The model with what missing cells cost.
imputed_from <- function(written, fit) {
  shares <- lapply(written[c("lacking", "lacking_low", "lacking_high")], function(one) {
    vapply(one, number_of, 0)
  })
  fit$lacking <- do.call(cbind, shares)
  dimnames(fit$lacking) <- list(unlist(written$incomplete), c("share", "low", "high"))
  parts <- stats::setNames(vapply(written$missing_information, number_of, 0), written$names)
  names(parts)[length(parts)] <- "(Intercept)"
  fit$missing_information <- parts[names(coef(fit))]
  class(fit) <- c("dp_imputed", class(fit))
  fit
}

# Coefficients as in R: the intercept first, reference categories apart, NA for what is not known.
coefficients_from <- function(written) {
  names <- unlist(written$names)
  last <- length(names)
  order <- c(last, seq_len(last - 1))
  names[last] <- "(Intercept)"
  reference <- unlist(written$reference)
  kept <- order[!reference[order]]
  known <- unlist(written$known)
  values <- vapply(written$coef, number_of, 0)
  values[!known] <- NA
  square <- function(rows) {
    matrix <- t(vapply(rows, function(row) vapply(row, number_of, 0), numeric(last)))
    matrix <- matrix[kept, kept, drop = FALSE]
    dimnames(matrix) <- list(names[kept], names[kept])
    matrix
  }
  list(
    coefficients = stats::setNames(values[kept], names[kept]),
    noise_cov = square(written$noise_cov), sampling_cov = square(written$sampling_cov),
    reference = names[order][reference[order]]
  )
}

# A number of a document; NA if it is not known.
number_of <- function(value) {
  if (is.null(value) || is.list(value)) return(NA_real_)
  as.numeric(sub("Infinity", "Inf", value, fixed = TRUE))
}
