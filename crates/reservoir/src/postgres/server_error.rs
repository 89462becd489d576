//! What a server says when it says no.

use std::fmt;

use tokio_postgres::error::DbError;

use crate::connect::ConnectErrorKind;

/// A server's error: its words and its SQLSTATE. The words of an error about rows may hold their values.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerError(Box<Said>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Said {
    severity: String,
    code: String,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
}

impl ServerError {
    /// From the fields of an `ErrorResponse`: the letter of each, and its value. What isn't UTF-8 is replaced, since a
    /// server that doesn't know yet what we read may say it in any encoding.
    pub fn from_fields<'f>(fields: impl IntoIterator<Item = (u8, &'f [u8])>) -> Self {
        let mut said = Said::default();
        for (field, value) in fields {
            let text = || String::from_utf8_lossy(value).into_owned();
            match field {
                // In the server's language, where it is too old to say it in English (`V`).
                b'S' if said.severity.is_empty() => said.severity = text(),
                b'V' => said.severity = text(),
                b'C' => said.code = text(),
                b'M' => said.message = text(),
                b'D' => said.detail = Some(text()),
                b'H' => said.hint = Some(text()),
                _ => {}
            }
        }
        ServerError(Box::new(said))
    }

    /// `ERROR`, `FATAL` or `PANIC`; after the last two the connection is over.
    pub fn severity(&self) -> &str {
        &self.0.severity
    }

    /// The SQLSTATE: five letters or digits, such as `28P01`.
    pub fn code(&self) -> &str {
        &self.0.code
    }

    /// What happened.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// More of it.
    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }

    /// What the server suggests.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// What it means for the next try to connect.
    pub(super) fn kind(&self) -> ConnectErrorKind {
        match self.code() {
            "53300" | "53400" => ConnectErrorKind::Full,
            // Shutting down, crashed, starting.
            "57P01" | "57P02" | "57P03" => ConnectErrorKind::Unreachable,
            "3D000" | "42501" => ConnectErrorKind::Refused,
            code if code.starts_with("28") => ConnectErrorKind::Refused,
            _ => ConnectErrorKind::Other,
        }
    }

    /// What to do about it, where it is about connecting.
    pub(super) fn advice(&self) -> &'static str {
        match self.code() {
            "28P01" => ": check the user, and its password or token",
            "28000" => ": check that the role exists and may log in, and what pg_hba.conf says about it",
            code if code.starts_with("28") => ": check the user and how the server authenticates it",
            "3D000" => ": check the name of the database, or create it",
            "42501" => ": grant the role what it lacks, such as CONNECT on the database",
            "53300" => {
                ": lower the budget of connections, or raise the limit of the server, the database or the role"
            }
            "53400" => {
                ": a limit of the server's configuration is reached: lower the budget, or raise it there"
            }
            "57P03" => ": it is starting, stopping or recovering, and will be back",
            _ => "",
        }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())?;
        if let Some(detail) = self.detail() {
            write!(f, " ({detail})")?;
        }
        write!(f, " [{}]", self.code())?;
        match self.hint() {
            Some(hint) => write!(f, ": {hint}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for ServerError {}

impl From<&DbError> for ServerError {
    fn from(said: &DbError) -> Self {
        // The other one is in the server's language.
        let severity = said.parsed_severity().map_or_else(|| said.severity().to_owned(), |it| it.to_string());
        ServerError(Box::new(Said {
            severity,
            code: said.code().code().to_owned(),
            message: said.message().to_owned(),
            detail: said.detail().map(ToOwned::to_owned),
            hint: said.hint().map(ToOwned::to_owned),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_shows_what_happened_the_sqlstate_and_what_to_do() {
        let mut fields: Vec<(u8, &[u8])> =
            vec![(b'V', b"ERROR"), (b'S', b"FEHLER"), (b'C', b"53400"), (b'M', b"all slots are in use")];
        let said = ServerError::from_fields(fields.clone());
        assert_eq!(said.to_string(), "all slots are in use [53400]");
        assert_eq!((said.severity(), said.code()), ("ERROR", "53400"));
        fields.extend([(b'D', &b"there are 10"[..]), (b'H', b"Free one."), (b'F', b"slot.c")]);
        let said = ServerError::from_fields(fields);
        assert_eq!(said.to_string(), "all slots are in use (there are 10) [53400]: Free one.");
    }

    #[test]
    fn words_in_any_encoding_are_words() {
        let said = ServerError::from_fields([(b'S', &b"FATAL"[..]), (b'M', b"\xffno")]);
        assert_eq!((said.severity(), said.message(), said.code()), ("FATAL", "\u{fffd}no", ""));
    }
}
