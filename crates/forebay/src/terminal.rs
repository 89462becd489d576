//! What is printed for people: colour on terminals only, and nothing that somebody else wrote can act on one.
//!
//! Invariant: text from elsewhere (rows, errors of servers) is printed through [`shown`], so that no control character reaches
//! the terminal.

use std::io::IsTerminal;

/// Whether colours are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paint {
    coloured: bool,
}

/// What a colour says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Green: fit; a row that came.
    Good,
    /// Yellow: look; a row that changed.
    Careful,
    /// Red: wrong; a row that went.
    Bad,
    /// Grey: beside the point.
    Faint,
    /// Bold: a heading.
    Strong,
}

impl Paint {
    /// No colours.
    pub const PLAIN: Paint = Paint { coloured: false };

    /// Colours if this is a terminal, unless `NO_COLOR` says otherwise.
    pub fn on(stream: &impl IsTerminal) -> Paint {
        let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Paint { coloured: stream.is_terminal() && !forbidden && !dumb }
    }

    /// The text, coloured if colours are used.
    pub fn tone(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => 32,
            Tone::Careful => 33,
            Tone::Bad => 31,
            Tone::Faint => 2,
            Tone::Strong => 1,
        };
        if self.coloured { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A text from elsewhere, with whatever could act on a terminal, or turn the order of its letters, written as an escape.
pub fn shown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\u{200e}'
            | '\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
            | '\u{2028}'
            | '\u{2029}' => {
                out.extend(letter.escape_unicode());
            }
            letter if letter.is_control() => out.extend(letter.escape_default()),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_can_not_act_on_the_terminal() {
        assert_eq!(shown("plain, ünïcode 漢字 🙂 \"q\" \\"), "plain, ünïcode 漢字 🙂 \"q\" \\");
        assert_eq!(shown("\x1b[31mred\x1b[0m"), "\\u{1b}[31mred\\u{1b}[0m");
        assert_eq!(shown("a\nb\tc\rd\u{7}\u{7f}\u{9b}2J"), "a\\nb\\tc\\rd\\u{7}\\u{7f}\\u{9b}2J");
        assert_eq!(shown("a\u{202e}b\u{2028}"), "a\\u{202e}b\\u{2028}");
    }

    #[test]
    fn without_a_terminal_there_is_no_colour() {
        assert_eq!(Paint::PLAIN.tone(Tone::Bad, "x"), "x");
        assert_eq!(Paint { coloured: true }.tone(Tone::Bad, "x"), "\x1b[31mx\x1b[0m");
    }
}
