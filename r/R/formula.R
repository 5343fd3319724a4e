# Formulas of R as text of the language of formulas of cloister, which is a closed list: nothing of
# it is run at the silos.

FUNCTIONS <- c("log", "log1p", "sqrt", "exp")
TERMS <- c("I", "factor", "C", "relevel", "bs", "cut", "offset", "exposure")
MOST_POWER <- 8
# What to write in place of functions that depend on the records.
INSTEAD <- c(
  poly = "I(age^2), or bs(age, knots = c(40, 60))",
  ns = "bs(age, knots = c(40, 60))", s = "bs(age, knots = c(40, 60))",
  scale = "I((age - 50) / 10) with public numbers", center = "I(age - 50) with a public number",
  log2 = "I(log(age) / 0.6931472)", log10 = "I(log(age) / 2.302585)",
  as.factor = "factor(arm)", ordered = "factor(arm)"
)

formula_text <- function(formula) {
  if (!inherits(formula, "formula") || length(formula) != 3) {
    refuse("formula must be like y ~ x, with a target on its left.")
  }
  where <- environment(formula)
  left <- formula[[2]]
  target <- if (is.call(left)) side_text(left, where) else number_text_of(left, where)
  paste(target, "~", side_text(formula[[3]], where))
}

# A side of a formula: terms and their operators.
side_text <- function(x, where) {
  if (is.name(x)) return(name_text(x))
  if (is.numeric(x)) return(number_text(x))
  if (!is.call(x)) unknown(x)
  call <- call_name(x)
  parts <- as.list(x)[-1]
  if (call == "(") return(paste0("(", side_text(parts[[1]], where), ")"))
  if (call %in% c("+", "-", "*", ":", "/", "^")) {
    sides <- vapply(parts, side_text, "", where = where)
    sign <- if (call == "^") "**" else call
    if (length(sides) == 1) return(paste0(sign, sides))
    return(paste(sides, collapse = if (call == ":") ":" else paste0(" ", sign, " ")))
  }
  if (call %in% c("factor", "C", "relevel")) return(category_text(x))
  if (call %in% c("bs", "cut")) return(pieces_text(x, call, where))
  if (call %in% c("offset", "exposure") && length(parts) == 1) {
    return(paste0(call, "(", number_text_of(parts[[1]], where), ")"))
  }
  if (call %in% c("I", FUNCTIONS)) {
    text <- number_text_of(x, where)
    return(if (call == "I") paste0("I(", text, ")") else text)
  }
  unknown(x)
}

# Arithmetic of columns and numbers.
number_text_of <- function(x, where) {
  if (is.name(x)) return(name_text(x))
  if (is.numeric(x)) return(number_text(x))
  if (!is.call(x)) unknown(x)
  call <- call_name(x)
  parts <- as.list(x)[-1]
  if (call == "^") {
    power <- parts[[2]]
    if (!is.numeric(power) || !power %in% seq_len(MOST_POWER)) {
      refuse("a power must be an integer from 1 to ", MOST_POWER, "; write sqrt() or exp().")
    }
    return(paste0(bracket(parts[[1]], where), "**", number_text(power)))
  }
  if (call %in% c("+", "-", "*", "/")) {
    texts <- vapply(parts, bracket, "", where = where)
    if (length(texts) == 1) return(paste0(call, texts))
    return(paste(texts, collapse = paste0(" ", call, " ")))
  }
  if (call %in% c("(", "I") && length(parts) == 1) return(number_text_of(parts[[1]], where))
  if (call %in% FUNCTIONS && length(parts) == 1) {
    return(paste0(call, "(", number_text_of(parts[[1]], where), ")"))
  }
  unknown(x)
}

# Brackets around all operations, so that no rule of precedence is needed.
bracket <- function(x, where) {
  text <- number_text_of(x, where)
  while (is.call(x) && call_name(x) %in% c("(", "I")) x <- x[[2]]
  if (is.call(x) && !call_name(x) %in% FUNCTIONS) paste0("(", text, ")") else text
}

# `factor(arm)`, `C(arm, Treatment("drug"))` and `relevel(arm, ref = "drug")`.
category_text <- function(x) {
  call <- call_name(x)
  parts <- as.list(x)[-1]
  reference <- NULL
  if (call == "relevel") {
    parts <- as.list(match.call(function(x, ref) NULL, x))[-1]
    reference <- parts$ref
    inner <- parts$x
    if (is.call(inner) && call_name(inner) == "factor" && length(inner) == 2) inner <- inner[[2]]
    parts <- list(inner)
  } else if (call == "C" && length(parts) == 2) {
    contrast <- parts[[2]]
    if (is.call(contrast) && call_name(contrast) == "Treatment" && length(contrast) == 2) {
      reference <- contrast[[2]]
    }
    parts <- if (is.null(reference)) parts else parts[1]
  }
  constant <- is.character(reference) || is.numeric(reference)
  if (length(parts) != 1 || !is.name(parts[[1]]) || !(is.null(reference) || constant)) {
    refuse(
      "a category must be like factor(arm), or relevel(factor(arm), ref = \"drug\"), got ",
      source_of(x), "; its levels are those of the schema."
    )
  }
  if (is.null(reference)) return(paste0("C(", name_text(parts[[1]]), ")"))
  level <- jsonlite::toJSON(reference, auto_unbox = TRUE, digits = NA)
  paste0("C(", name_text(parts[[1]]), ", Treatment(", level, "))")
}

# Splines and classes, whose knots and edges must be public numbers.
pieces_text <- function(x, call, where) {
  wanted <- if (call == "bs") "knots" else "edges"
  given <- as.list(x)[-1]
  names <- names(given)
  if (is.null(names)) names <- rep("", length(given))
  inner <- given[!nzchar(names)]
  named <- given[nzchar(names)]
  if (call == "cut" && "breaks" %in% names(named)) {
    breaks <- constant_of(named$breaks, where)
    if (length(breaks) < 3 || breaks[1] != -Inf || breaks[length(breaks)] != Inf) {
      refuse("cut() must be like cut(age, edges = c(40, 65)), or have breaks from -Inf to Inf.")
    }
    named <- c(named[names(named) != "breaks"], list(edges = breaks[-c(1, length(breaks))]))
  }
  extra <- setdiff(names(named), c(wanted, if (call == "bs") "degree"))
  if (length(inner) != 1 || length(extra) || is.null(named[[wanted]])) {
    refuse(
      call, "() must be like ", call, "(age, ", wanted, " = c(40, 60)) with public ", wanted,
      ", since others depend on the records; got ", source_of(x), "."
    )
  }
  numbers <- number_text(constant_of(named[[wanted]], where))
  degree <- if (!is.null(named$degree)) {
    paste0(", degree=", number_text(constant_of(named$degree, where)))
  }
  list <- paste(numbers, collapse = ", ")
  paste0(call, "(", number_text_of(inner[[1]], where), ", ", wanted, "=[", list, "]", degree, ")")
}

# A number of the analyst, such as c(40, 60) or the name of a variable with it.
constant_of <- function(x, where) {
  found <- tryCatch(eval(x, where), error = function(error) NULL)
  if (!is.numeric(found) || !length(found) || anyNA(found)) {
    refuse("public numbers must be like c(40, 60), got ", source_of(x), ".")
  }
  found
}

# Python's grammar reads a name; one that is no word of it is between backticks.
name_text <- function(x) {
  name <- as.character(x)
  if (name == ".") refuse("write the names of columns in place of '.'.")
  if (grepl("`", name, fixed = TRUE)) refuse("a name must not have a backtick, got ", name, ".")
  if (grepl("^[A-Za-z_][A-Za-z0-9_]*$", name) && !name %in% PYTHON) name else paste0("`", name, "`")
}

PYTHON <- c(
  "False", "None", "True", "and", "as", "assert", "async", "await", "class", "def", "del", "elif",
  "except", "finally", "from", "global", "import", "is", "lambda", "nonlocal", "not", "or", "pass",
  "raise", "return", "try", "with", "yield"
)

call_name <- function(x) {
  if (is.name(x[[1]])) as.character(x[[1]]) else ""
}

source_of <- function(x) {
  text <- paste(deparse(x), collapse = " ")
  sQuote(if (nchar(text) > 60) paste0(substr(text, 1, 60), "...") else text, FALSE)
}

unknown <- function(x) {
  call <- if (is.call(x)) call_name(x) else ""
  if (call %in% c("$", "[[", "[")) {
    refuse("write the name of a column alone, as age in place of D$age; got ", source_of(x), ".")
  }
  if (call %in% c("|", "||")) {
    refuse("a random intercept such as (1 | site) is for dp_lmer(); got ", source_of(x), ".")
  }
  if (call %in% names(INSTEAD)) {
    refuse(call, "() is not in a formula of cloister; write ", INSTEAD[[call]], " in its place.")
  }
  refuse(
    "a formula must not have ", source_of(x), "; it may have columns, numbers, + - * / ^ : and ",
    paste0(c(TERMS, FUNCTIONS), "()", collapse = ", "), "."
  )
}
