#' Compare groups as in Table 1 of a paper
#'
#' @inheritParams dp_glm
#' @param by Column whose categories are the groups; NULL for no groups.
#' @return A data frame of class `dp_table` with a row for each number: `table`, `row`, `column`,
#'   `value`, the interval of the noise `low` and `high`, and the interval with sampling
#'   `population_low` and `population_high`. The attribute `document` is that of the command.
#' @export
dp_table1 <- function(by = NULL, data, schema, epsilon, nominal_n = NULL, options = list(), ...) {
  options <- c(if (!is.null(by)) list(by = by), options)
  run <- list(epsilon = epsilon, nominal_n = nominal_n, ...)
  table_of(run_task(question_of("table1", options = options), data, schema, run))
}

#' Estimate the effect of a treatment
#'
#' Runs the task `treatment-effect` of cloister, if your version has it.
#'
#' @inheritParams dp_glm
#' @param treatment,outcome Names of columns.
#' @param covariates Names of columns that may confound.
#' @param estimand Effect that is estimated, such as `"ate"` or `"ato"`; the task's default if NULL.
#' @return As for [dp_table1()].
#' @export
dp_effect <- function(treatment, outcome, covariates, data, schema, epsilon, nominal_n,
                      estimand = NULL, options = list(), ...) {
  named <- list(treatment = treatment, outcome = outcome, covariates = as.list(covariates))
  options <- c(named, if (!is.null(estimand)) list(estimand = estimand), options)
  run <- list(epsilon = epsilon, nominal_n = nominal_n, ...)
  question <- question_of("treatment-effect", options = options)
  table_of(run_task(question, data, schema, run))
}

#' Estimate hazard ratios of an event
#'
#' Runs the task `cox` of cloister, as `coxph` of the package survival does for the records of one
#' place.
#'
#' @inheritParams dp_glm
#' @param formula Such as `Surv(days, dead) ~ age + arm + strata(site)`: the time, an event of yes
#'   and no, up to three covariates, and a column whose values have their own baseline hazards, or
#'   `site` for the silos.
#' @param options List of further options of the task, such as `list(nominal_events = 2000)`.
#' @return As for [dp_table1()].
#' @export
dp_cox <- function(formula, data, schema, epsilon, nominal_n, options = list(), ...) {
  run <- list(epsilon = epsilon, nominal_n = nominal_n, ...)
  question <- question_of("cox", options = c(hazards_of(formula), options))
  table_of(run_task(question, data, schema, run))
}

# The options of the task from a formula.
hazards_of <- function(formula) {
  left <- if (inherits(formula, "formula") && length(formula) == 3) formula[[2]]
  names <- if (is.call(left) && call_name(left) == "Surv") as.list(left)[-1]
  if (length(names) != 2 || !all(vapply(names, is.name, NA))) {
    refuse("formula must be like Surv(days, dead) ~ age + strata(site).")
  }
  terms <- added(formula[[3]])
  strata <- lapply(terms, named_in, "strata")
  others <- vapply(strata, is.null, NA)
  if (sum(!others) > 1) refuse("formula must have one strata() at most.")
  c(
    list(time = as.character(names[[1]]), event = as.character(names[[2]])),
    list(covariates = as.list(columns_of(terms[others]))), list(strata = unlist(strata))[any(!others)]
  )
}

# All numbers of a release, as `cloister export` writes them.
table_of <- function(done) {
  folder <- tempfile("numbers")
  on.exit(unlink(folder, recursive = TRUE))
  with_file(done$model, function(path) run_command(c("export", path, "--out", folder)), ".json")
  found <- utils::read.csv(file.path(folder, "numbers.csv"), encoding = "UTF-8")
  attr(found, "document") <- done$document
  class(found) <- c("dp_table", "data.frame")
  found
}

#' @export
print.dp_table <- function(x, digits = 4, ...) {
  for (title in unique(x$table)) {
    cat(title, "\n", sep = "")
    rows <- x[x$table == title, setdiff(names(x), "table")]
    class(rows) <- "data.frame"
    print(rows, digits = digits, row.names = FALSE)
    cat("\n")
  }
  invisible(x)
}
