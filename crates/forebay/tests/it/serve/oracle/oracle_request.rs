//! Random requests for shapes: table, where clause, columns, replica mode.

use forebay_testkit::TestRng;

use super::schema_writers;
use super::tables::{self, GENERATED, OracleTable};

/// A shape that a client requests.
#[derive(Debug, Clone)]
pub(crate) struct OracleRequest {
    pub(crate) table: &'static OracleTable,
    /// The where clause of the request. It may have parameters.
    clause: Option<String>,
    params: Vec<String>,
    /// The same clause for Postgres, with literals instead of parameters.
    pub(crate) literal: String,
    /// The selected columns. Empty: all columns of a table whose definition changes.
    pub(crate) columns: Vec<&'static str>,
    /// Whether the request names its columns.
    pub(crate) names_columns: bool,
    /// The bound in the clause `id < id_below`. Only for a table whose definition changes.
    pub(crate) id_below: Option<i64>,
    /// Whether the request has `replica=full`.
    pub(crate) is_full: bool,
}

impl OracleRequest {
    /// Returns a request for `table`, or for any table with a fixed definition.
    ///
    /// `version`: the version of Postgres. Generated columns are published since 18.
    pub(crate) fn random(rng: &mut TestRng, version: u32, table: Option<&'static OracleTable>) -> Self {
        // Half of the requests are for the first table, which has the most kinds of clauses.
        let tables = tables::requested();
        let any = if rng.percent(50) { tables[0] } else { rng.pick(tables) };
        let table = table.unwrap_or(any);
        let (clause, literal, params) = match table.clauses {
            [] => random_clause(rng),
            _ if rng.percent(50) => (None, "true".to_owned(), Vec::new()),
            clauses => {
                let clause = rng.pick(clauses);
                (Some(clause.to_owned()), clause.to_owned(), Vec::new())
            }
        };
        let is_published = |name: &&&str| version >= GENERATED.1 || **name != GENERATED.0;
        let mut columns: Vec<_> = table.columns.iter().filter(is_published).copied().collect();
        let names_columns = rng.percent(30) && table.key.len() < table.columns.len();
        if names_columns {
            columns.retain(|name| table.key.contains(name) || rng.percent(50));
        }
        OracleRequest {
            table,
            clause,
            params,
            literal,
            columns,
            names_columns,
            id_below: None,
            is_full: rng.percent(30),
        }
    }

    /// Returns a request for a table whose definition changes.
    pub(crate) fn of_changing_table(rng: &mut TestRng) -> Self {
        let table = rng.pick(schema_writers::requested());
        let id_below = rng.percent(30).then(|| rng.between(30, 100) as i64);
        let literal = id_below.map_or("true".to_owned(), |id_below| format!("id < {id_below}"));
        let names_columns = rng.percent(25);
        let columns = if names_columns { table.columns.to_vec() } else { Vec::new() };
        let clause = id_below.map(|_| literal.clone());
        OracleRequest {
            table,
            clause,
            params: Vec::new(),
            literal,
            columns,
            names_columns,
            id_below,
            is_full: rng.percent(30),
        }
    }

    /// Returns the query parameters of the request.
    pub(crate) fn query(&self) -> Vec<(String, String)> {
        let mut query = vec![("table".to_owned(), self.table.name.to_owned())];
        query.extend(self.clause.iter().map(|clause| ("where".to_owned(), clause.clone())));
        let params = self.params.iter().enumerate();
        query.extend(params.map(|(index, value)| (format!("params[{}]", index + 1), value.clone())));
        if self.names_columns {
            query.push(("columns".to_owned(), self.columns.join(",")));
        }
        if self.is_full {
            query.push(("replica".to_owned(), "full".to_owned()));
        }
        query
    }
}

/// Returns a clause for the request, the same clause for Postgres, and the parameters.
fn random_clause(rng: &mut TestRng) -> (Option<String>, String, Vec<String>) {
    let mut clause = ClauseGenerator { rng, params: Vec::new() };
    let depth = clause.rng.below(3);
    if clause.rng.percent(8) {
        return (None, "true".to_owned(), Vec::new());
    }
    let (requested, literal) = clause.condition(depth);
    (Some(requested), literal, clause.params)
}

/// Generates clauses of the table `items`.
struct ClauseGenerator<'a> {
    rng: &'a mut TestRng,
    params: Vec<String>,
}

impl ClauseGenerator<'_> {
    /// Returns a condition for the request, and the same condition for Postgres.
    fn condition(&mut self, depth: usize) -> (String, String) {
        if depth == 0 {
            return self.leaf();
        }
        let (left, same_left) = self.condition(depth - 1);
        if self.rng.percent(20) {
            return (format!("NOT ({left})"), format!("NOT ({same_left})"));
        }
        let (right, same_right) = self.condition(depth - 1);
        let word = self.rng.pick(&["AND", "OR"]);
        (format!("({left}) {word} ({right})"), format!("({same_left}) {word} ({same_right})"))
    }

    fn leaf(&mut self) -> (String, String) {
        let (group, other) = (self.rng.below(8), self.rng.below(8));
        let (amount, id) = (self.rng.below(100), self.rng.between(1, 120));
        let letter = self.rng.pick(&["a", "b", "c", "d"]);
        let plain = match self.rng.below(19) {
            0 | 1 => return self.equality(group),
            2 => format!("grp IN ({group}, {other})"),
            3 => format!("amount > {amount}"),
            4 => format!("amount BETWEEN {} AND {amount}", amount / 2),
            5 => format!("amount + grp * 10 <= {amount}"),
            6 => format!("label LIKE '{letter}%'"),
            7 => format!("label ILIKE '%{}%'", letter.to_uppercase()),
            8 => format!("lower(label) >= '{letter}'"),
            9 => "label IS NULL".to_owned(),
            10 => self.rng.pick(&["flag", "flag IS NOT TRUE", "NOT flag", "flag IS UNKNOWN"]).to_owned(),
            11 => format!("tags @> ARRAY['{letter}']"),
            12 => format!("'{letter}' = ANY(tags)"),
            13 => format!("id < {id}"),
            14 => format!("id >= {id} AND grp <> {group}"),
            // Postgres evaluates these on changed rows.
            15 => format!("label ~ '^[a-{letter}]'"),
            16 => format!("label COLLATE \"en-x-icu\" > '{letter}{group}'"),
            17 => format!("tags::text ~ '{letter}' AND id < {id}"),
            _ => format!("label IS DISTINCT FROM '{letter}{group}'"),
        };
        (plain.clone(), plain)
    }

    fn equality(&mut self, group: usize) -> (String, String) {
        let literal = format!("grp = {group}");
        if self.rng.percent(50) {
            return (literal.clone(), literal);
        }
        self.params.push(group.to_string());
        (format!("grp = ${}", self.params.len()), literal)
    }
}
