#' The data contract of all silos
#'
#' A schema states the public bounds or categories of each column, and the unit of privacy. Take
#' bounds from a codebook or from physics, never from the records.
#'
#' @param ... Either one path of a TOML file, or columns by name: `c(0, 120)` for numbers,
#'   `c(0L, 120L)` for integers, two values of class `Date` for dates, `c("placebo", "drug")` for
#'   categories, `"boolean"`, or a list with keys of the file, such as
#'   `list(type = "number", min = 0, max = 9, missing = "midpoint")`.
#' @param dataset Your name for the data, under which a ledger keeps the budget.
#' @param unit `"row"`, or the column that identifies the unit of privacy, such as a person.
#' @param max_rows Most rows of one unit in a silo; required with such a column.
#' @param max_silos_per_person Most silos with rows of one unit.
#' @return An object of class `dp_schema`: its text, its `dataset`, its columns and its `digest`,
#'   which all silos compare.
#' @examples
#' \dontrun{
#' clinic <- dp_schema(
#'   dataset = "clinic", age = c(0, 120), arm = c("placebo", "drug"), ill = "boolean"
#' )
#' }
#' @export
dp_schema <- function(..., dataset = NULL, unit = "row", max_rows = NULL,
                      max_silos_per_person = NULL) {
  columns <- list(...)
  if (length(columns) == 1 && is.null(names(columns))) {
    return(schema_of_text(paste(read_lines(columns[[1]]), collapse = "\n")))
  }
  if (is.null(dataset)) refuse("dataset must be your name for the data.")
  head <- list(
    dataset = dataset, unit = unit, max_rows = max_rows,
    max_silos_per_person = max_silos_per_person
  )
  tables <- Map(column_table, names(columns), columns)
  schema_of_text(paste(c(toml_lines(head), unlist(tables)), collapse = "\n"))
}

column_table <- function(name, given) {
  found <- if (is.list(given)) {
    given
  } else if (inherits(given, "Date") && length(given) == 2) {
    list(type = "date", min = format(given[1]), max = format(given[2]))
  } else if (is.numeric(given) && length(given) == 2) {
    kind <- if (is.integer(given)) "integer" else "number"
    list(type = kind, min = given[1], max = given[2])
  } else if (identical(given, "boolean")) {
    list(type = "boolean")
  } else if (is.character(given) && length(given) > 1) {
    list(type = "category", categories = given)
  } else {
    refuse(
      "column ", sQuote(name, FALSE), " must be like c(0, 120), c(\"placebo\", \"drug\"), ",
      "\"boolean\" or a list with its type."
    )
  }
  c("", "[[columns]]", toml_lines(c(list(name = name), found)))
}

toml_lines <- function(values) {
  values <- values[!vapply(values, is.null, NA)]
  written <- vapply(values, function(value) {
    text <- if (is.numeric(value)) number_text(value) else vapply(value, json_text, "")
    if (length(text) == 1) text else paste0("[", paste(text, collapse = ", "), "]")
  }, "")
  paste(names(values), "=", written)
}

json_text <- function(text) {
  as.character(jsonlite::toJSON(text, auto_unbox = TRUE))
}

schema_of_text <- function(text) {
  written <- with_file(text, function(path) run_command(c("schema", "validate", path)), ".toml")
  columns <- vapply(written$schema$columns, function(column) column$name, "")
  found <- list(text = text, dataset = written$dataset, columns = columns, digest = written$digest)
  structure(found, class = "dp_schema")
}

# A schema, or the path of one, as an object.
schema_of <- function(schema) {
  if (inherits(schema, "dp_schema")) schema else dp_schema(schema)
}

# The value of a function of a file with this text, which is deleted afterwards.
with_file <- function(text, used, extension) {
  path <- tempfile("cloister", fileext = extension)
  on.exit(unlink(path))
  writeLines(enc2utf8(text), path, useBytes = TRUE)
  used(path)
}

#' @export
print.dp_schema <- function(x, ...) {
  cat("schema of ", sQuote(x$dataset, FALSE), ": ", paste(x$columns, collapse = ", "), "\n", sep = "")
  cat("digest ", x$digest, "\n", sep = "")
  invisible(x)
}
