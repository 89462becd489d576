//! Random shapes of the table.

use forebay_testkit::Dice;

use super::history::COLUMNS;

/// What a client asks for.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    /// As the client says it, perhaps with parameters.
    clause: Option<String>,
    params: Vec<String>,
    /// As Postgres takes it, without parameters.
    pub(crate) literal: String,
    pub(crate) columns: Vec<&'static str>,
    pub(crate) is_full: bool,
}

impl Wanted {
    pub(crate) fn random(dice: &mut Dice) -> Self {
        let mut clause = Clause { dice, params: Vec::new() };
        let depth = clause.dice.below(3);
        let (asked, literal) = match clause.dice.percent(8) {
            true => (None, "true".to_owned()),
            false => {
                let (asked, literal) = clause.condition(depth);
                (Some(asked), literal)
            }
        };
        let params = clause.params;
        let chosen = |dice: &mut Dice| match dice.percent(30) {
            true => COLUMNS.into_iter().filter(|name| *name == "id" || dice.percent(50)).collect(),
            false => COLUMNS.to_vec(),
        };
        Wanted { clause: asked, params, literal, columns: chosen(dice), is_full: dice.percent(30) }
    }

    /// The query parameters that define it.
    pub(crate) fn query(&self) -> Vec<(String, String)> {
        let mut query = vec![("table".to_owned(), "items".to_owned())];
        query.extend(self.clause.iter().map(|clause| ("where".to_owned(), clause.clone())));
        let params = self.params.iter().enumerate();
        query.extend(params.map(|(index, value)| (format!("params[{}]", index + 1), value.clone())));
        if self.columns.len() < COLUMNS.len() {
            query.push(("columns".to_owned(), self.columns.join(",")));
        }
        if self.is_full {
            query.push(("replica".to_owned(), "full".to_owned()));
        }
        query
    }
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
