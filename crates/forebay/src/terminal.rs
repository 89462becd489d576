//! Terminal output: colours, and escaping of text from other sources.
//!
//! Invariant: no control character of a row or of a server's error reaches the terminal.
//! Enforced by: such text is printed through [`escape_controls`].

use std::io::IsTerminal;

/// Whether output is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paint {
    coloured: bool,
}

/// Meaning of a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Green: success; an inserted row.
    Good,
    /// Yellow: warning; an updated row.
    Careful,
    /// Red: failure; a deleted row.
    Bad,
    /// Grey: secondary information.
    Faint,
    /// Bold: a heading.
    Strong,
}

impl Paint {
    /// Never colours.
    pub const PLAIN: Paint = Paint { coloured: false };

    /// Colours if the stream is a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`.
    pub fn on(stream: &impl IsTerminal) -> Paint {
        let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Paint { coloured: stream.is_terminal() && !forbidden && !dumb }
    }

    /// Returns the text, coloured if colours are enabled.
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

/// Returns a text with its control characters, and characters that change the text direction, as
/// escapes.
pub fn escape_controls(text: &str) -> String {
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
    fn control_characters_are_escaped() {
        assert_eq!(escape_controls("plain, ünïcode 漢字 🙂 \"q\" \\"), "plain, ünïcode 漢字 🙂 \"q\" \\");
        assert_eq!(escape_controls("\x1b[31mred\x1b[0m"), "\\u{1b}[31mred\\u{1b}[0m");
        assert_eq!(escape_controls("a\nb\tc\rd\u{7}\u{7f}\u{9b}2J"), "a\\nb\\tc\\rd\\u{7}\\u{7f}\\u{9b}2J");
        assert_eq!(escape_controls("a\u{202e}b\u{2028}"), "a\\u{202e}b\\u{2028}");
    }

    #[test]
    fn only_a_terminal_gets_colours() {
        assert_eq!(Paint::PLAIN.tone(Tone::Bad, "x"), "x");
        assert_eq!(Paint { coloured: true }.tone(Tone::Bad, "x"), "\x1b[31mx\x1b[0m");
    }
}
