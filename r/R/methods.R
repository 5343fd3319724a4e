#' Coefficients, covariances and intervals of a released model
#'
#' Reference categories have no entry, as in R. A coefficient that noise hides is `NA`, with its
#' covariances, and its interval has no bound.
#'
#' The error of a coefficient has two parts. The covariance of type `"noise"` is that of the noise
#' of privacy: such an interval covers what `glm` finds from the same records. That of type
#' `"sampling"` is the error that `glm` has too. Type `"total"`, the default, is their sum: such an
#' interval covers the population. Intervals are normal.
#'
#' @param object,x A model of [dp_glm()], [dp_lmer()], [dp_imputed()] or [dp_result()].
#' @param type Which error: `"total"`, `"noise"` or, for `vcov`, `"sampling"`.
#' @param parm Names or numbers of coefficients; all by default.
#' @param level Coverage of the intervals.
#' @param digits Number of digits to print.
#' @param ... Not used.
#' @name dp_methods
NULL

#' @rdname dp_methods
#' @export
coef.dp_glm <- function(object, ...) {
  object$coefficients
}

#' @rdname dp_methods
#' @export
vcov.dp_glm <- function(object, type = c("total", "noise", "sampling"), ...) {
  switch(match.arg(type),
    total = object$noise_cov + object$sampling_cov,
    noise = object$noise_cov,
    sampling = object$sampling_cov
  )
}

#' @rdname dp_methods
#' @export
confint.dp_glm <- function(object, parm, level = 0.95, type = c("total", "noise"), ...) {
  values <- coef(object)
  if (missing(parm)) parm <- names(values)
  if (is.numeric(parm)) parm <- names(values)[parm]
  half <- stats::qnorm((1 + level) / 2) * errors_of(object, match.arg(type))
  ends <- cbind(values - half, values + half)
  # Of a coefficient that is not known, every value is possible.
  ends[is.na(values), ] <- rep(c(-Inf, Inf), each = sum(is.na(values)))
  tails <- 100 * c((1 - level) / 2, (1 + level) / 2)
  colnames(ends) <- paste(format(tails, trim = TRUE, digits = 3), "%")
  ends[parm, , drop = FALSE]
}

errors_of <- function(object, type) {
  # Rounding may make a variance slightly negative.
  sqrt(pmax(diag(vcov(object, type = type)), 0))
}

#' @rdname dp_methods
#' @export
nobs.dp_glm <- function(object, ...) {
  object$n
}

#' @rdname dp_methods
#' @export
summary.dp_glm <- function(object, ...) {
  values <- coef(object)
  total <- errors_of(object, "total")
  z <- values / total
  table <- cbind(
    Estimate = values, "Noise SE" = errors_of(object, "noise"), "Std. Error" = total,
    "z value" = z, "Pr(>|z|)" = 2 * stats::pnorm(-abs(z))
  )
  structure(list(model = object, coefficients = table), class = "summary.dp_glm")
}

#' @rdname dp_methods
#' @export
print.summary.dp_glm <- function(x, digits = max(3, getOption("digits") - 3), ...) {
  print_head(x$model)
  stats::printCoefmat(x$coefficients, digits = digits, na.print = "not known", cs.ind = 1:3,
    tst.ind = 4)
  print_tail(x$model)
  invisible(x)
}

#' @rdname dp_methods
#' @export
print.dp_glm <- function(x, digits = max(3, getOption("digits") - 3), ...) {
  print_head(x)
  print(coef(x), digits = digits, na.print = "not known")
  print_tail(x)
  invisible(x)
}

print_head <- function(x) {
  if (!is.null(x$formula)) cat(paste(deparse(x$formula), collapse = "\n"), "\n")
  cat("family ", x$family, ", link ", x$link, "\n\n", sep = "")
}

print_tail <- function(x) {
  if (length(x$reference)) cat("\nreference: ", paste(x$reference, collapse = ", "), sep = "")
  cat(
    "\nrecords ", format(round(x$n), big.mark = ","), " +- ", format(round(x$n_half_width)),
    "; epsilon ", format(x$epsilon, digits = 3), ", delta ", format(x$delta, digits = 3), "\n",
    sep = ""
  )
  if (!is.na(x$residual_std)) cat("residual deviation", format(x$residual_std, digits = 4), "\n")
  if (!is.null(x$tau)) {
    tau <- format(x$tau, digits = 3)
    cat("deviation between silos ", tau[1], " [", tau[2], ", ", tau[3], "]\n", sep = "")
  }
  for (name in rownames(x$lacking)) {
    share <- sprintf("%.1f %%", 100 * x$lacking[name, ])
    cat("cells completed: ", name, " ", share[1], " [", share[2], ", ", share[3], "]\n", sep = "")
  }
  models <- if (is.null(x$lacking)) " and sampling" else ", sampling and the models of cells"
  cat("Std. Error includes the noise of privacy", models, ".\n", sep = "")
}

#' Predict records with a released model
#'
#' Runs locally and costs nothing. Predictions are **not private**: each depends on its record.
#'
#' @param object A model of [dp_glm()], [dp_lmer()], [dp_imputed()] or [dp_result()].
#' @param newdata Data frame with the columns of the formula.
#' @param type `"response"` for the mean, or `"link"`.
#' @param silo Silo of all rows, for a model with the term `site`.
#' @param ... Not used.
#' @return A numeric vector with an entry for each row; `NA` for a row without a cell.
#' @export
predict.dp_glm <- function(object, newdata, type = c("response", "link"), silo = NULL, ...) {
  type <- match.arg(type)
  if (is.null(object$model) || is.null(object$schema)) {
    refuse("predictions need the model and its schema; give dp_result() the schema.")
  }
  folder <- tempfile("predict")
  dir.create(folder, mode = "0700")
  on.exit(unlink(folder, recursive = TRUE))
  place <- function(name) file.path(folder, name)
  writeLines(enc2utf8(object$model), place("model.json"), useBytes = TRUE)
  writeLines(enc2utf8(object$schema), place("schema.toml"), useBytes = TRUE)
  write_frame(newdata, place("rows.csv"))
  words <- c("predict", place("model.json"), place("rows.csv"), "--schema", place("schema.toml"))
  words <- c(words, "--out", place("found.csv"), options_of(list(silo = silo)))
  # Its warning is on this page of help.
  suppressWarnings(run_command(words))
  found <- utils::read.csv(place("found.csv"), check.names = FALSE)
  values <- as.numeric(found[[ncol(found)]])
  if (type == "response") return(values)
  switch(object$link, identity = values, logit = stats::qlogis(values), log = log(values))
}

#' Coefficients and facts of a model as tables
#'
#' Methods of `tidy` and `glance` of the package generics, as `broom` has for `glm`.
#'
#' @param x A model of [dp_glm()], [dp_lmer()], [dp_imputed()] or [dp_result()].
#' @param conf.int Whether to add `conf.low` and `conf.high`.
#' @param conf.level Their coverage.
#' @param exponentiate Whether to return ratios; errors stay those of coefficients, as in `broom`.
#' @param type Error of the intervals and of `std.error`: `"total"` or `"noise"`.
#' @param ... Not used.
#' @return A data frame, or a tibble if that package is installed. `tidy` has a row for each
#'   coefficient, `glance` one row. `nobs` has noise. With completed cells, `fmi` is the part of the
#'   variance over samples that they add, as in the package mice.
#' @name dp_tidy
NULL

#' @rdname dp_tidy
#' @exportS3Method generics::tidy
tidy.dp_glm <- function(x, conf.int = FALSE, conf.level = 0.95, exponentiate = FALSE,
                        type = c("total", "noise"), ...) {
  type <- match.arg(type)
  values <- coef(x)
  error <- errors_of(x, type)
  found <- data.frame(
    term = names(values), estimate = values, std.error = error, statistic = values / error,
    p.value = 2 * stats::pnorm(-abs(values / error)), noise.std.error = errors_of(x, "noise")
  )
  # As in tidy() of the package mice.
  if (!is.null(x$missing_information)) found$fmi <- x$missing_information
  if (conf.int) {
    ends <- confint(x, level = conf.level, type = type)
    found$conf.low <- ends[, 1]
    found$conf.high <- ends[, 2]
  }
  if (exponentiate) {
    ratios <- intersect(c("estimate", "conf.low", "conf.high"), names(found))
    found[ratios] <- exp(found[ratios])
  }
  as_table(found)
}

#' @rdname dp_tidy
#' @exportS3Method generics::glance
glance.dp_glm <- function(x, ...) {
  as_table(data.frame(
    family = x$family, link = x$link, nobs = x$n, sigma = x$residual_std,
    tau = if (is.null(x$tau)) NA_real_ else x$tau[[1]], epsilon = x$epsilon, delta = x$delta,
    digest = x$digest
  ))
}

as_table <- function(frame) {
  rownames(frame) <- NULL
  if (requireNamespace("tibble", quietly = TRUE)) tibble::as_tibble(frame) else frame
}
