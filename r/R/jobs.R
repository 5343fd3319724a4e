#' The cost and the expected error of a question
#'
#' From public facts alone; nothing is spent and no record is read.
#'
#' @inheritParams dp_glm
#' @param question A formula, or the name of a task such as `"table1"`.
#' @param epsilon Privacy budget; leave it out to find that of `want`.
#' @param want Named numbers: the wanted margin of error of forecasts of the task.
#' @param silos Number or names of silos.
#' @param ... Further options of `cloister plan` by name, such as `profile = "pairwise"`.
#' @return A list of class `dp_plan`: `epsilon`, `delta`, `rounds`, `describe`,
#'   `upload_bytes_per_silo`, `attacker_odds`, and `forecast`, which is empty if the task knows no
#'   error before it runs, as `glm`.
#' @export
dp_plan <- function(question, family = "gaussian", schema, epsilon = NULL, nominal_n, silos = 3,
                    want = NULL, options = list(), ...) {
  wanted <- paste0(names(want), "=", number_text(want))
  given <- list(epsilon = epsilon, nominal_n = nominal_n, silos = silos, ...)
  words <- c(
    asked_of(question, family, options), options_of(given),
    if (length(want)) as.vector(rbind("--want", wanted))
  )
  found <- with_file(schema_of(schema)$text, function(path) {
    run_command(c("plan", "--schema", path, words))
  }, ".toml")
  keys <- c("describe", "rounds", "upload_bytes_per_silo", "attacker_odds", "forecast")
  structure(c(found$plan$budget[c("epsilon", "delta")], found[keys]), class = "dp_plan")
}

# The words of a question, whose formula may have a random intercept.
asked_of <- function(question, family, options) {
  if (inherits(question, "formula") && any(c("|", "||") %in% all.names(question))) {
    question <- fixed_formula(question)
  }
  question_of(question, family, options)
}

#' @export
print.dp_plan <- function(x, ...) {
  cat(strwrap(x$describe, 90), sep = "\n")
  cat(
    "\ncost     epsilon ", format(x$epsilon, digits = 4), ", delta ", format(x$delta, digits = 3),
    "\nrounds   ", x$rounds, ", ", format(x$upload_bytes_per_silo, big.mark = ","),
    " bytes from each silo\n",
    sep = ""
  )
  if (!length(x$forecast)) cat("expected error: not known before the run\n")
  for (name in names(x$forecast)) {
    numbers <- vapply(unlist(x$forecast[[name]]), number_of, 0)
    cat("expected ", name, ": ", paste(format(numbers, digits = 4), collapse = ", "), "\n", sep = "")
  }
  invisible(x)
}

#' Propose, approve, watch and read a federated job
#'
#' An analyst proposes a job to the silos of a federation, the owner of each silo approves it at the
#' silo, and the analyst reads the result. The configuration file is that of the party which runs
#' the function; `cloister join` writes it.
#'
#' @inheritParams dp_plan
#' @param config Configuration file of the analyst, or of the silo for `dp_approve`.
#' @param silos Names of silos, or `NAME=FINGERPRINT`.
#' @param publish Whether the result is sealed to you, too; needs three silos or more.
#' @param job The value of `dp_submit`, or the id of a job or its first digits.
#' @param every,timeout Seconds between two looks, and of all of them.
#' @param accept_aggregator_noise For two silos: accept that only the aggregator can verify that the
#'   noise was added.
#' @param schema A [dp_schema()], or the path of one; for `dp_result` only predictions need it.
#' @param ... Further options of `cloister jobs submit` by name.
#' @return `dp_submit` returns a list of class `dp_job`. `dp_approve` and `dp_watch` return the state
#'   of the job. `dp_result` returns a model of class `dp_glm`, also `dp_lmer` for a formula with
#'   `(1 | site)`, or a table as [dp_table1()] does for other tasks.
#' @export
dp_submit <- function(question, family = "gaussian", config, schema, silos, epsilon, nominal_n,
                      options = list(), publish = TRUE, ...) {
  contract <- schema_of(schema)
  given <- list(
    config = config, silos = silos, epsilon = epsilon, nominal_n = nominal_n, publish = publish, ...
  )
  words <- c(asked_of(question, family, options), options_of(given))
  found <- with_file(contract$text, function(path) {
    run_command(c("jobs", "submit", "--schema", path, words))
  }, ".toml")
  structure(
    list(
      id = found$job, state = found$state, digest = found$plan_digest, config = config,
      schema = contract, question = question
    ),
    class = "dp_job"
  )
}

#' @rdname dp_submit
#' @export
dp_approve <- function(job, config, accept_aggregator_noise = FALSE) {
  given <- list(config = config, accept_aggregator_noise = accept_aggregator_noise)
  run_command(c("jobs", "approve", id_of(job), options_of(given)))$state
}

ENDED <- c("done", "failed", "declined", "cancelled")

#' @rdname dp_submit
#' @export
dp_watch <- function(job, config = job$config, every = 5, timeout = Inf) {
  started <- Sys.time()
  repeat {
    state <- run_command(c("jobs", "show", id_of(job), "--config", config))$state
    waited <- as.numeric(difftime(Sys.time(), started, units = "secs"))
    if (state %in% ENDED || waited >= timeout) return(state)
    Sys.sleep(every)
  }
}

#' @rdname dp_submit
#' @export
dp_result <- function(job, config = job$config, schema = NULL) {
  document <- run_command(c("jobs", "result", id_of(job), "--config", config))
  # A silo names its file; an analyst's document is the model.
  file <- document$files$model
  model <- if (is.null(file)) attr(document, "text") else paste(read_lines(file), collapse = "\n")
  of_job <- inherits(job, "dp_job")
  if (is.null(document$coefficients)) return(table_of(list(document = document, model = model)))
  contract <- if (!is.null(schema)) schema_of(schema) else if (of_job) job$schema
  formula <- if (of_job && inherits(job$question, "formula")) job$question
  fit <- model_of(document, model, contract, formula)
  if (!is.null(formula) && "|" %in% all.names(formula)) mixed_of(fit, formula) else fit
}

id_of <- function(job) {
  if (inherits(job, "dp_job")) job$id else job
}

#' @export
print.dp_job <- function(x, ...) {
  cat("job ", x$id, ", ", x$state, "\nplan digest ", x$digest, "\n", sep = "")
  invisible(x)
}
