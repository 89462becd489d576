//! The canonical text of a tree: SQL again, with every name quoted and every operand in parentheses.
//!
//! Invariant: it reads as the same tree; and two clauses that differ only in blanks, comments, case, quotes, needless
//! parentheses, or in whether a value came as a parameter have one text.

use std::fmt::{self, Display, Formatter};

use super::{Choice, Kind, Subscript, Test, Tree, TypeName};

impl Display for Tree {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Name(parts) => list(f, parts.iter().map(|part| Name(part)), "."),
            Kind::Text(text) => write!(f, "'{}'", text.replace('\'', "''")),
            Kind::Number(number) if number.starts_with('-') => write!(f, "({number})"),
            Kind::Number(number) => f.write_str(number),
            Kind::Bool(value) => write!(f, "{value}"),
            Kind::Null => f.write_str("NULL"),
            Kind::And(operands) => parenthesised(f, operands, " AND "),
            Kind::Or(operands) => parenthesised(f, operands, " OR "),
            Kind::Not(operand) => write!(f, "(NOT {operand})"),
            Kind::Unary(operator, operand) => write!(f, "({operator} {operand})"),
            Kind::Binary(operator, operands) => write!(f, "({} {operator} {})", operands[0], operands[1]),
            Kind::Between { negated, symmetric, operands } => {
                let (not, symmetric) = (not(*negated), if *symmetric { "SYMMETRIC " } else { "" });
                let [operand, low, high] = &**operands;
                write!(f, "({operand} {not}BETWEEN {symmetric}{low} AND {high})")
            }
            Kind::In { negated, operand, list: items } => {
                write!(f, "({operand} {}IN ", not(*negated))?;
                parenthesised(f, items, ", ")?;
                f.write_str(")")
            }
            Kind::Quantified { operator, all, operands } => {
                let quantifier = if *all { "ALL" } else { "ANY" };
                write!(f, "({} {operator} {quantifier} ({}))", operands[0], operands[1])
            }
            Kind::Is { negated, test, operand } => {
                let test = match test {
                    Test::Null => "NULL",
                    Test::True => "TRUE",
                    Test::False => "FALSE",
                    Test::Unknown => "UNKNOWN",
                };
                write!(f, "({operand} IS {}{test})", not(*negated))
            }
            Kind::Distinct { negated, operands } => {
                write!(f, "({} IS {}DISTINCT FROM {})", operands[0], not(*negated), operands[1])
            }
            Kind::Cast(operand, name) => write!(f, "({operand})::{name}"),
            Kind::Collate(operand, collation) => {
                write!(f, "({operand} COLLATE ")?;
                list(f, collation.iter().map(|part| Name(part)), ".")?;
                f.write_str(")")
            }
            Kind::Call(name, arguments) => {
                write!(f, "{}", Name(name))?;
                parenthesised(f, arguments, ", ")
            }
            Kind::Choice(choice, arguments) => {
                f.write_str(match choice {
                    Choice::Coalesce => "COALESCE",
                    Choice::Greatest => "GREATEST",
                    Choice::Least => "LEAST",
                    Choice::NullIf => "NULLIF",
                })?;
                parenthesised(f, arguments, ", ")
            }
            Kind::Case { operand, arms, otherwise } => {
                case(f, operand.as_deref(), arms, otherwise.as_deref())
            }
            Kind::Array(items) => {
                f.write_str("ARRAY[")?;
                list(f, items.iter(), ", ")?;
                f.write_str("]")
            }
            Kind::Subscript(base, subscripts) => {
                write!(f, "({base})")?;
                subscripts.iter().try_for_each(|subscript| write!(f, "[{subscript}]"))
            }
        }
    }
}

impl Display for Subscript {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Subscript::Index(index) => write!(f, "{index}"),
            Subscript::Slice(from, to) => {
                from.iter().try_for_each(|from| write!(f, "{from}"))?;
                f.write_str(" : ")?;
                to.iter().try_for_each(|to| write!(f, "{to}"))
            }
        }
    }
}

impl Display for TypeName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.schema.iter().try_for_each(|schema| write!(f, "{}.", Name(schema)))?;
        write!(f, "{}", Name(&self.name))?;
        if !self.modifiers.is_empty() {
            f.write_str("(")?;
            list(f, self.modifiers.iter(), ", ")?;
            f.write_str(")")?;
        }
        f.write_str(if self.is_array { "[]" } else { "" })
    }
}

struct Name<'n>(&'n str);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.replace('"', "\"\""))
    }
}

fn not(negated: bool) -> &'static str {
    if negated { "NOT " } else { "" }
}

fn list<T: Display>(f: &mut Formatter<'_>, items: impl Iterator<Item = T>, between: &str) -> fmt::Result {
    for (index, item) in items.enumerate() {
        write!(f, "{}{item}", if index == 0 { "" } else { between })?;
    }
    Ok(())
}

fn parenthesised(f: &mut Formatter<'_>, items: &[Tree], between: &str) -> fmt::Result {
    f.write_str("(")?;
    list(f, items.iter(), between)?;
    f.write_str(")")
}

fn case(
    f: &mut Formatter<'_>,
    operand: Option<&Tree>,
    arms: &[(Tree, Tree)],
    otherwise: Option<&Tree>,
) -> fmt::Result {
    f.write_str("(CASE")?;
    operand.iter().try_for_each(|operand| write!(f, " {operand}"))?;
    arms.iter().try_for_each(|(when, then)| write!(f, " WHEN {when} THEN {then}"))?;
    otherwise.iter().try_for_each(|otherwise| write!(f, " ELSE {otherwise}"))?;
    f.write_str(" END)")
}
