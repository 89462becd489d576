//! Random shapes of the tables.

use forebay_testkit::Dice;

use super::changing;
use super::tables::{self, GENERATED, Table};

/// What a client asks for.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) table: &'static Table,
    /// As the client says it, perhaps with parameters.
    clause: Option<String>,
    params: Vec<String>,
    /// As Postgres takes it, without parameters.
    pub(crate) literal: String,
    pub(crate) columns: Vec<&'static str>,
    /// Whether it names its columns.
    pub(crate) is_chosen: bool,
    /// Of a table whose definition changes: only rows with a smaller id.
    pub(crate) below: Option<i64>,
    pub(crate) is_full: bool,
}

impl Wanted {
    /// `version`: of Postgres, which doesn't publish generated columns before 18.
    pub(crate) fn random(dice: &mut Dice, version: u32, table: Option<&'static Table>) -> Self {
        // The first is the one with the most kinds of clauses.
        let tables = tables::asked();
        let any = if dice.percent(50) { tables[0] } else { dice.pick(tables) };
        let table = table.unwrap_or(any);
        let (clause, literal, params) = match table.clauses {
            [] => at_random(dice),
            _ if dice.percent(50) => (None, "true".to_owned(), Vec::new()),
            clauses => {
                let clause = dice.pick(clauses);
                (Some(clause.to_owned()), clause.to_owned(), Vec::new())
            }
        };
        let is_there = |name: &&&str| version >= GENERATED.1 || **name != GENERATED.0;
        let mut columns: Vec<_> = table.columns.iter().filter(is_there).copied().collect();
        let is_chosen = dice.percent(30) && table.key.len() < table.columns.len();
        if is_chosen {
            columns.retain(|name| table.key.contains(name) || dice.percent(50));
        }
        Wanted { table, clause, params, literal, columns, is_chosen, below: None, is_full: dice.percent(30) }
    }

    /// Of a table whose definition changes.
    pub(crate) fn changing(dice: &mut Dice) -> Self {
        let table = dice.pick(changing::asked());
        let below = dice.percent(30).then(|| dice.between(30, 100) as i64);
        let literal = below.map_or("true".to_owned(), |below| format!("id < {below}"));
        let is_chosen = dice.percent(25);
        let columns = if is_chosen { table.columns.to_vec() } else { Vec::new() };
        let clause = below.map(|_| literal.clone());
        Wanted {
            table,
            clause,
            params: Vec::new(),
            literal,
            columns,
            is_chosen,
            below,
            is_full: dice.percent(30),
        }
    }

    /// The query parameters that define it.
    pub(crate) fn query(&self) -> Vec<(String, String)> {
        let mut query = vec![("table".to_owned(), self.table.name.to_owned())];
        query.extend(self.clause.iter().map(|clause| ("where".to_owned(), clause.clone())));
        let params = self.params.iter().enumerate();
        query.extend(params.map(|(index, value)| (format!("params[{}]", index + 1), value.clone())));
        if self.is_chosen {
            query.push(("columns".to_owned(), self.columns.join(",")));
        }
        if self.is_full {
            query.push(("replica".to_owned(), "full".to_owned()));
        }
        query
    }
}

/// As it is asked for, as Postgres takes it, and its parameters.
fn at_random(dice: &mut Dice) -> (Option<String>, String, Vec<String>) {
    let mut clause = Clause { dice, params: Vec::new() };
    let depth = clause.dice.below(3);
    if clause.dice.percent(8) {
        return (None, "true".to_owned(), Vec::new());
    }
    let (asked, literal) = clause.condition(depth);
    (Some(asked), literal, clause.params)
}

struct Clause<'a> {
    dice: &'a mut Dice,
    params: Vec<String>,
}

impl Clause<'_> {
    /// As it is asked for, and as Postgres takes it.
    fn condition(&mut self, depth: usize) -> (String, String) {
        if depth == 0 {
            return self.leaf();
        }
        let (left, same_left) = self.condition(depth - 1);
        if self.dice.percent(20) {
            return (format!("NOT ({left})"), format!("NOT ({same_left})"));
        }
        let (right, same_right) = self.condition(depth - 1);
        let word = self.dice.pick(&["AND", "OR"]);
        (format!("({left}) {word} ({right})"), format!("({same_left}) {word} ({same_right})"))
    }

    fn leaf(&mut self) -> (String, String) {
        let (group, other) = (self.dice.below(8), self.dice.below(8));
        let (amount, id) = (self.dice.below(100), self.dice.between(1, 120));
        let letter = self.dice.pick(&["a", "b", "c", "d"]);
        let plain = match self.dice.below(16) {
            0 | 1 => return self.equality(group),
            2 => format!("grp IN ({group}, {other})"),
            3 => format!("amount > {amount}"),
            4 => format!("amount BETWEEN {} AND {amount}", amount / 2),
            5 => format!("amount + grp * 10 <= {amount}"),
            6 => format!("label LIKE '{letter}%'"),
            7 => format!("label ILIKE '%{}%'", letter.to_uppercase()),
            8 => format!("lower(label) >= '{letter}'"),
            9 => "label IS NULL".to_owned(),
            10 => self.dice.pick(&["flag", "flag IS NOT TRUE", "NOT flag", "flag IS UNKNOWN"]).to_owned(),
            11 => format!("tags @> ARRAY['{letter}']"),
            12 => format!("'{letter}' = ANY(tags)"),
            13 => format!("id < {id}"),
            14 => format!("id >= {id} AND grp <> {group}"),
            _ => format!("label IS DISTINCT FROM '{letter}{group}'"),
        };
        (plain.clone(), plain)
    }

    fn equality(&mut self, group: usize) -> (String, String) {
        let literal = format!("grp = {group}");
        if self.dice.percent(50) {
            return (literal.clone(), literal);
        }
        self.params.push(group.to_string());
        (format!("grp = ${}", self.params.len()), literal)
    }
}
