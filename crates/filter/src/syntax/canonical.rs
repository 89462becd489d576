//! Canonical text of a syntax tree: SQL with every name quoted and every operand in parentheses.
//!
//! Invariant: parsing the text gives the same tree. Clauses have the same text if they differ only
//! in blanks, comments, case, quotes, redundant parentheses, or in parameters instead of constants.
//! Enforced by: `tests/it/robustness.rs`.

use std::fmt::{self, Display, Formatter};

use super::{ChoiceFunction, IsTest, Subscript, Subselect, SyntaxKind, SyntaxTree, TypeName};

impl Display for SyntaxTree {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.kind {
            SyntaxKind::Name(parts) => list(f, parts.iter().map(|part| QuotedName(part)), "."),
            SyntaxKind::Text(text) => write!(f, "'{}'", text.replace('\'', "''")),
            SyntaxKind::Number(number) if number.starts_with('-') => write!(f, "({number})"),
            SyntaxKind::Number(number) => f.write_str(number),
            SyntaxKind::Bool(value) => write!(f, "{value}"),
            SyntaxKind::Null => f.write_str("NULL"),
            SyntaxKind::And(operands) => parenthesised(f, operands, " AND "),
            SyntaxKind::Or(operands) => parenthesised(f, operands, " OR "),
            SyntaxKind::Not(operand) => write!(f, "(NOT {operand})"),
            SyntaxKind::Unary(operator, operand) => write!(f, "({operator} {operand})"),
            SyntaxKind::Binary(operator, operands) => {
                write!(f, "({} {operator} {})", operands[0], operands[1])
            }
            SyntaxKind::Between { negated, symmetric, operands } => {
                let (not, symmetric) = (not(*negated), if *symmetric { "SYMMETRIC " } else { "" });
                let [operand, low, high] = &**operands;
                write!(f, "({operand} {not}BETWEEN {symmetric}{low} AND {high})")
            }
            SyntaxKind::In { negated, operand, list: items } => {
                write!(f, "({operand} {}IN ", not(*negated))?;
                parenthesised(f, items, ", ")?;
                f.write_str(")")
            }
            SyntaxKind::InSelect { negated, operand, select } => {
                write!(f, "({operand} {}IN ({select}))", not(*negated))
            }
            SyntaxKind::Exists(select) => write!(f, "(EXISTS ({select}))"),
            SyntaxKind::Quantified { operator, all, operands } => {
                let quantifier = if *all { "ALL" } else { "ANY" };
                write!(f, "({} {operator} {quantifier} ({}))", operands[0], operands[1])
            }
            SyntaxKind::Is { negated, test, operand } => {
                let test = match test {
                    IsTest::Null => "NULL",
                    IsTest::True => "TRUE",
                    IsTest::False => "FALSE",
                    IsTest::Unknown => "UNKNOWN",
                };
                write!(f, "({operand} IS {}{test})", not(*negated))
            }
            SyntaxKind::Distinct { negated, operands } => {
                write!(f, "({} IS {}DISTINCT FROM {})", operands[0], not(*negated), operands[1])
            }
            SyntaxKind::Cast(operand, name) => write!(f, "({operand})::{name}"),
            SyntaxKind::Collate(operand, collation) => {
                write!(f, "({operand} COLLATE ")?;
                list(f, collation.iter().map(|part| QuotedName(part)), ".")?;
                f.write_str(")")
            }
            SyntaxKind::Call(name, arguments) => {
                write!(f, "{}", QuotedName(name))?;
                parenthesised(f, arguments, ", ")
            }
            SyntaxKind::Choice(choice, arguments) => {
                f.write_str(match choice {
                    ChoiceFunction::Coalesce => "COALESCE",
                    ChoiceFunction::Greatest => "GREATEST",
                    ChoiceFunction::Least => "LEAST",
                    ChoiceFunction::NullIf => "NULLIF",
                })?;
                parenthesised(f, arguments, ", ")
            }
            SyntaxKind::Case { operand, arms, otherwise } => {
                case(f, operand.as_deref(), arms, otherwise.as_deref())
            }
            SyntaxKind::Array(items) => {
                f.write_str("ARRAY[")?;
                list(f, items.iter(), ", ")?;
                f.write_str("]")
            }
            SyntaxKind::Row(items) => {
                f.write_str("ROW")?;
                parenthesised(f, items, ", ")
            }
            SyntaxKind::Subscript(base, subscripts) => {
                write!(f, "({base})")?;
                subscripts.iter().try_for_each(|subscript| write!(f, "[{subscript}]"))
            }
        }
    }
}

impl Display for Subselect {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("SELECT ")?;
        match self.columns.is_empty() {
            true => f.write_str("1")?,
            false => list(f, self.columns.iter(), ", ")?,
        }
        write!(f, " FROM {}.{}", QuotedName(&self.table.schema), QuotedName(&self.table.name))?;
        self.alias.iter().try_for_each(|alias| write!(f, " AS {}", QuotedName(alias)))?;
        self.condition.iter().try_for_each(|condition| write!(f, " WHERE {condition}"))
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
        self.schema.iter().try_for_each(|schema| write!(f, "{}.", QuotedName(schema)))?;
        write!(f, "{}", QuotedName(&self.name))?;
        if !self.modifiers.is_empty() {
            f.write_str("(")?;
            list(f, self.modifiers.iter(), ", ")?;
            f.write_str(")")?;
        }
        f.write_str(if self.is_array { "[]" } else { "" })
    }
}

struct QuotedName<'n>(&'n str);

impl Display for QuotedName<'_> {
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

fn parenthesised(f: &mut Formatter<'_>, items: &[SyntaxTree], between: &str) -> fmt::Result {
    f.write_str("(")?;
    list(f, items.iter(), between)?;
    f.write_str(")")
}

fn case(
    f: &mut Formatter<'_>,
    operand: Option<&SyntaxTree>,
    arms: &[(SyntaxTree, SyntaxTree)],
    otherwise: Option<&SyntaxTree>,
) -> fmt::Result {
    f.write_str("(CASE")?;
    operand.iter().try_for_each(|operand| write!(f, " {operand}"))?;
    arms.iter().try_for_each(|(when, then)| write!(f, " WHEN {when} THEN {then}"))?;
    otherwise.iter().try_for_each(|otherwise| write!(f, " ELSE {otherwise}"))?;
    f.write_str(" END)")
}
