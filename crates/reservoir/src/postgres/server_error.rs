//! Error that a Postgres server sent.

use std::fmt;

use tokio_postgres::error::DbError;

use crate::connect::ConnectionErrorKind;

/// An `ErrorResponse`: message and SQLSTATE. The message may contain row values.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresServerError(Box<ServerErrorFields>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ServerErrorFields {
    severity: String,
    code: String,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
}

impl PostgresServerError {
    /// Parses the fields of an `ErrorResponse`: type byte and value.
    ///
    /// Invalid UTF-8 is replaced: before the client encoding is set, the server may use any
    /// encoding.
    pub fn from_fields<'f>(fields: impl IntoIterator<Item = (u8, &'f [u8])>) -> Self {
        let mut parsed = ServerErrorFields::default();
        for (field, value) in fields {
            let text = || String::from_utf8_lossy(value).into_owned();
            match field {
                // `S` is localized; `V` isn't, but servers before 9.6 don't send it.
                b'S' if parsed.severity.is_empty() => parsed.severity = text(),
                b'V' => parsed.severity = text(),
                b'C' => parsed.code = text(),
                b'M' => parsed.message = text(),
                b'D' => parsed.detail = Some(text()),
                b'H' => parsed.hint = Some(text()),
                _ => {}
            }
        }
        PostgresServerError(Box::new(parsed))
    }

    /// Returns `ERROR`, `FATAL` or `PANIC`; the last two end the connection.
    pub fn severity(&self) -> &str {
        &self.0.severity
    }

    /// Returns the SQLSTATE: five letters or digits, such as `28P01`.
    pub fn code(&self) -> &str {
        &self.0.code
    }

    /// Returns the primary message.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the detail message.
    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }

    /// Returns the hint.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// Returns the class of the error, which decides when to dial again.
    pub(super) fn kind(&self) -> ConnectionErrorKind {
        match self.code() {
            "53300" | "53400" => ConnectionErrorKind::Full,
            // Shutdown, crash, start-up.
            "57P01" | "57P02" | "57P03" => ConnectionErrorKind::Unreachable,
            "3D000" | "42501" => ConnectionErrorKind::Refused,
            code if code.starts_with("28") => ConnectionErrorKind::Refused,
            _ => ConnectionErrorKind::Other,
        }
    }

    /// Returns the advice that follows the text of a connection error; empty if there is none.
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

impl fmt::Display for PostgresServerError {
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

impl fmt::Debug for PostgresServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for PostgresServerError {}

impl From<&DbError> for PostgresServerError {
    fn from(error: &DbError) -> Self {
        // `severity` is localized; `parsed_severity` isn't.
        let severity =
            error.parsed_severity().map_or_else(|| error.severity().to_owned(), |parsed| parsed.to_string());
        PostgresServerError(Box::new(ServerErrorFields {
            severity,
            code: error.code().code().to_owned(),
            message: error.message().to_owned(),
            detail: error.detail().map(ToOwned::to_owned),
            hint: error.hint().map(ToOwned::to_owned),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_error_shows_message_detail_sqlstate_and_hint() {
        let mut fields: Vec<(u8, &[u8])> =
            vec![(b'V', b"ERROR"), (b'S', b"FEHLER"), (b'C', b"53400"), (b'M', b"all slots are in use")];
        let error = PostgresServerError::from_fields(fields.clone());
        assert_eq!(error.to_string(), "all slots are in use [53400]");
        assert_eq!((error.severity(), error.code()), ("ERROR", "53400"));
        fields.extend([(b'D', &b"there are 10"[..]), (b'H', b"Free one."), (b'F', b"slot.c")]);
        let error = PostgresServerError::from_fields(fields);
        assert_eq!(error.to_string(), "all slots are in use (there are 10) [53400]: Free one.");
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        let error = PostgresServerError::from_fields([(b'S', &b"FATAL"[..]), (b'M', b"\xffno")]);
        assert_eq!((error.severity(), error.message(), error.code()), ("FATAL", "\u{fffd}no", ""));
    }
}
