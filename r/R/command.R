#' Differentially private regression over several silos
#'
#' Each silo is a file or a data frame, or an organisation of a federation. Only noisy sums over the
#' silos are released. All work is done by the command `cloister`; install it with
#' `pip install "cloister[formula]"`. If it is not on the path, name it:
#' `options(cloisterr.command = c("/opt/venv/bin/python", "-m", "cloister"))`, or set the environment
#' variable `CLOISTER_COMMAND`.
#'
#' A number that noise hides is `NA`. A warning of the command is a warning of R. An error has the
#' class `cloister_error` and the exit code of the command as `status`.
#'
#' @importFrom stats coef confint nobs predict vcov
#' @keywords internal
"_PACKAGE"

# The words of the command, the program first.
command_words <- function() {
  getOption("cloisterr.command", Sys.getenv("CLOISTER_COMMAND", "cloister"))
}

INSTALL <- "install it with pip install \"cloister[formula]\", or set options(cloisterr.command = )."

has_command <- function() nzchar(Sys.which(command_words()[1]))

# Runs the command and returns its JSON document, with its text as an attribute.
run_command <- function(words) {
  if (!has_command()) {
    refuse("there is no command ", sQuote(command_words()[1], FALSE), "; ", INSTALL)
  }
  out <- tempfile("cloister-out")
  err <- tempfile("cloister-err")
  on.exit(unlink(c(out, err)))
  all <- c(command_words(), words, "--json")
  status <- system2(all[1], shQuote(all[-1]), stdout = out, stderr = err, env = library_path())
  said <- read_lines(err)
  if (status != 0) {
    said <- sub("^cloister: ", "", said[!grepl("^cloister: warning: ", said)])
    refuse(paste(said, collapse = "\n"), status = as.integer(status))
  }
  text <- paste(read_lines(out), collapse = "\n")
  document <- jsonlite::fromJSON(text, simplifyVector = FALSE)
  warnings <- unlist(document$warnings)
  for (one in warnings) warning(one, call. = FALSE)
  # The others count rows exactly: they are for the owner of the records alone.
  for (one in setdiff(sub("^cloister: (warning: )?", "", said), warnings)) message(one)
  structure(document, text = text)
}

# R adds folders of the system for itself, where another Python would find wrong libraries.
library_path <- function() {
  given <- Sys.getenv("LD_LIBRARY_PATH")
  if (!nzchar(given)) return(character())
  of_r <- function(folder) any(startsWith(folder, c(R.home(), "/usr/lib", "/lib")))
  kept <- Filter(Negate(of_r), strsplit(given, ":", fixed = TRUE)[[1]])
  paste0("LD_LIBRARY_PATH=", shQuote(paste(kept, collapse = ":")))
}

read_lines <- function(path) {
  readLines(path, warn = FALSE, encoding = "UTF-8")
}

refuse <- function(..., status = NA_integer_) {
  stop(structure(
    class = c("cloister_error", "error", "condition"),
    list(message = paste0(...), call = NULL, status = status)
  ))
}

# Options of the command from arguments of R: `max_loss = 0.1` is "--max-loss 0.1".
options_of <- function(arguments) {
  if (length(arguments) && (is.null(names(arguments)) || !all(nzchar(names(arguments))))) {
    refuse("further arguments must have names, as the options of the command.")
  }
  words <- lapply(names(arguments), function(name) {
    value <- arguments[[name]]
    option <- paste0("--", gsub("_", "-", name, fixed = TRUE))
    if (is.null(value) || identical(value, FALSE)) return(NULL)
    if (isTRUE(value)) return(option)
    c(option, paste(number_text(value), collapse = ","))
  })
  unlist(words)
}

# Numbers with all their digits, and other values as text.
number_text <- function(value) {
  if (!is.numeric(value)) return(as.character(value))
  vapply(as.numeric(value), function(one) {
    for (digits in 15:17) {
      text <- formatC(one, digits = digits, width = 1, format = "g")
      if (identical(as.numeric(text), one)) break
    }
    text
  }, "")
}

# Options of a task as "--set NAME=JSON".
settings_of <- function(options) {
  written <- vapply(options, function(value) {
    as.character(jsonlite::toJSON(value, auto_unbox = TRUE, null = "null", digits = NA))
  }, "")
  as.vector(rbind(rep("--set", length(written)), paste0(names(written), "=", written)))
}
