//! Who we are, as the server asks for it: a password in clear, its MD5, or SCRAM-SHA-256 with channel binding.
//!
//! Invariants: with SCRAM we are let in only by a server that has proven that it knows the password, too; with
//! `channel_binding=require` only by one that is bound to our TLS session. No error holds the password.
//! Not here: sockets; messages come in, and what is to be sent goes out.

use std::mem;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use forebay_reservoir::ChannelBinding;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256};
use postgres_protocol::message::backend::{AuthenticationSaslBody, Message};
use postgres_protocol::message::frontend;

/// What we know.
pub(super) struct Identity<'a> {
    pub(super) user: &'a str,
    pub(super) password: Option<&'a str>,
    pub(super) binding: ChannelBinding,
    /// The hash that identifies the server's certificate; `None`: there is no TLS, or no such hash.
    pub(super) server_end_point: Option<Vec<u8>>,
}

/// Why we aren't in.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AuthError {
    #[error("the server asks for a password, and there is none")]
    NoPassword,
    /// Client and server don't agree how.
    #[error("{0}")]
    Failed(String),
    /// It isn't this message's turn.
    #[error("it authenticates out of turn")]
    OutOfTurn,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Send this, and take the next message.
    Send(BytesMut),
    /// Take the next message.
    Wait,
    /// We are in.
    Done,
}

/// How far we are.
pub(super) enum Authentication {
    Begun,
    /// The server has the password, or its hash, and decides.
    PasswordSent,
    ScramBegun(ScramSha256),
    ScramAnswered(ScramSha256),
    /// The server has proven that it knows the password.
    ServerProven,
    /// Of no use after an error.
    Over,
}

impl Authentication {
    /// What the server's next message leads to. Errors and notices of the server aren't for here.
    pub(super) fn step(&mut self, message: Message, identity: &Identity<'_>) -> Result<Step, AuthError> {
        let before = mem::replace(self, Authentication::Over);
        let (after, step) = match before {
            Authentication::Begun => begin(message, identity)?,
            Authentication::PasswordSent | Authentication::ServerProven => match message {
                Message::AuthenticationOk => (Authentication::Over, Step::Done),
                _ => return Err(AuthError::OutOfTurn),
            },
            Authentication::ScramBegun(mut scram) => match message {
                Message::AuthenticationSaslContinue(body) => {
                    scram.update(body.data()).map_err(failed)?;
                    let mut out = BytesMut::new();
                    frontend::sasl_response(scram.message(), &mut out).map_err(failed)?;
                    (Authentication::ScramAnswered(scram), Step::Send(out))
                }
                _ => return Err(AuthError::OutOfTurn),
            },
            Authentication::ScramAnswered(mut scram) => match message {
                Message::AuthenticationSaslFinal(body) => {
                    scram.finish(body.data()).map_err(failed)?;
                    (Authentication::ServerProven, Step::Wait)
                }
                _ => return Err(AuthError::OutOfTurn),
            },
            Authentication::Over => return Err(AuthError::OutOfTurn),
        };
        *self = after;
        Ok(step)
    }
}

fn begin(message: Message, identity: &Identity<'_>) -> Result<(Authentication, Step), AuthError> {
    let password = || identity.password.ok_or(AuthError::NoPassword);
    let send = |password: &[u8]| {
        let mut out = BytesMut::new();
        frontend::password_message(password, &mut out).map_err(failed)?;
        Ok((Authentication::PasswordSent, Step::Send(out)))
    };
    match message {
        Message::AuthenticationOk => {
            identity.may_go_unbound()?;
            Ok((Authentication::Over, Step::Done))
        }
        Message::AuthenticationCleartextPassword => {
            identity.may_go_unbound()?;
            send(password()?.as_bytes())
        }
        Message::AuthenticationMd5Password(body) => {
            identity.may_go_unbound()?;
            send(md5_hash(identity.user.as_bytes(), password()?.as_bytes(), body.salt()).as_bytes())
        }
        Message::AuthenticationSasl(body) => {
            let (binding, mechanism) = identity.mechanism(&body)?;
            let scram = ScramSha256::new(password()?.as_bytes(), binding);
            let mut out = BytesMut::new();
            frontend::sasl_initial_response(mechanism, scram.message(), &mut out).map_err(failed)?;
            Ok((Authentication::ScramBegun(scram), Step::Send(out)))
        }
        Message::AuthenticationGss
        | Message::AuthenticationSspi
        | Message::AuthenticationKerberosV5
        | Message::AuthenticationScmCredential => Err(AuthError::Failed(
            "the server asks for Kerberos, GSSAPI or SSPI, which isn't known here: give this user a password in \
             pg_hba.conf (scram-sha-256)"
                .to_owned(),
        )),
        _ => Err(AuthError::OutOfTurn),
    }
}

impl Identity<'_> {
    fn may_go_unbound(&self) -> Result<(), AuthError> {
        match self.binding {
            ChannelBinding::Disable | ChannelBinding::Prefer => Ok(()),
            ChannelBinding::Require => Err(AuthError::Failed(
                "the server didn't bind it to the TLS session, which channel_binding=require asks for: it needs TLS \
                 and scram-sha-256 in pg_hba.conf"
                    .to_owned(),
            )),
        }
    }

    fn mechanism(
        &self,
        offered: &AuthenticationSaslBody,
    ) -> Result<(sasl::ChannelBinding, &'static str), AuthError> {
        let (mut has_scram, mut has_plus) = (false, false);
        let mut mechanisms = offered.mechanisms();
        while let Some(mechanism) = mechanisms.next().map_err(failed)? {
            has_scram |= mechanism == SCRAM_SHA_256;
            has_plus |= mechanism == SCRAM_SHA_256_PLUS;
        }
        let end_point = match self.binding {
            ChannelBinding::Disable => None,
            ChannelBinding::Prefer | ChannelBinding::Require => self.server_end_point.clone(),
        };
        let (binding, mechanism) = match end_point {
            Some(end_point) if has_plus => {
                (sasl::ChannelBinding::tls_server_end_point(end_point), SCRAM_SHA_256_PLUS)
            }
            // A server that offered it sees by this that somebody in between took it out.
            Some(_) => (sasl::ChannelBinding::unrequested(), SCRAM_SHA_256),
            None => (sasl::ChannelBinding::unsupported(), SCRAM_SHA_256),
        };
        if mechanism != SCRAM_SHA_256_PLUS {
            if !has_scram {
                let problem =
                    "the server offers neither SCRAM-SHA-256 nor a variant of it that can be used here";
                return Err(AuthError::Failed(problem.to_owned()));
            }
            self.may_go_unbound()?;
        }
        Ok((binding, mechanism))
    }
}

fn failed(error: std::io::Error) -> AuthError {
    AuthError::Failed(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u32, data: &[u8]) -> Message {
        let body = [&kind.to_be_bytes()[..], data].concat();
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        let bytes = [&b"R"[..], &length, &body].concat();
        Message::parse(&mut BytesMut::from(&bytes[..])).unwrap().unwrap()
    }

    fn ok() -> Message {
        message(0, b"")
    }

    fn offer(mechanisms: &[&str]) -> Message {
        let names: String = mechanisms.iter().map(|name| format!("{name}\0")).collect();
        message(10, &[names.as_bytes(), b"\0"].concat())
    }

    fn identity(binding: ChannelBinding, end_point: Option<&[u8]>) -> Identity<'static> {
        let server_end_point = end_point.map(ToOwned::to_owned);
        Identity { user: "me", password: Some("hunter2"), binding, server_end_point }
    }

    fn sent(step: Step) -> String {
        match step {
            Step::Send(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_server_that_trusts_us_is_all_right_unless_it_must_be_bound() {
        let mut trusting = Authentication::Begun;
        assert_eq!(trusting.step(ok(), &identity(ChannelBinding::Prefer, None)), Ok(Step::Done));
        for asked in [ok(), message(3, b""), message(5, b"salt"), offer(&[SCRAM_SHA_256])] {
            let bound = identity(ChannelBinding::Require, Some(b"hash"));
            let error = Authentication::Begun.step(asked, &bound).unwrap_err();
            assert!(error.to_string().contains("channel_binding=require"), "{error}");
        }
    }

    #[test]
    fn passwords_are_sent_as_they_are_asked_for() {
        let me = identity(ChannelBinding::Prefer, None);
        let mut clear = Authentication::Begun;
        assert_eq!(sent(clear.step(message(3, b""), &me).unwrap()), "p\0\0\0\x0chunter2\0");
        assert_eq!(clear.step(ok(), &me), Ok(Step::Done));
        let mut hashed = Authentication::Begun;
        let hash = sent(hashed.step(message(5, b"salt"), &me).unwrap());
        assert!(hash.contains("md5") && !hash.contains("hunter2"), "{hash}");
        assert_eq!(hashed.step(ok(), &me), Ok(Step::Done));
    }

    #[test]
    fn without_a_password_there_is_nothing_to_send() {
        let nobody = Identity { password: None, ..identity(ChannelBinding::Prefer, None) };
        for asked in [message(3, b""), message(5, b"salt"), offer(&[SCRAM_SHA_256])] {
            assert_eq!(Authentication::Begun.step(asked, &nobody), Err(AuthError::NoPassword));
        }
    }

    #[test]
    fn the_channel_is_bound_where_both_sides_can() {
        let both = [SCRAM_SHA_256, SCRAM_SHA_256_PLUS];
        let cases = [
            (
                ChannelBinding::Prefer,
                Some(&b"hash"[..]),
                &both[..],
                "SCRAM-SHA-256-PLUS",
                "p=tls-server-end-point,,",
            ),
            (ChannelBinding::Require, Some(b"hash"), &both, "SCRAM-SHA-256-PLUS", "p=tls-server-end-point,,"),
            (ChannelBinding::Disable, Some(b"hash"), &both, "SCRAM-SHA-256\0", "n,,"),
            (ChannelBinding::Prefer, None, &both, "SCRAM-SHA-256\0", "n,,"),
            (ChannelBinding::Prefer, Some(b"hash"), &both[..1], "SCRAM-SHA-256\0", "y,,"),
        ];
        for (binding, end_point, offered, mechanism, header) in cases {
            let step = Authentication::Begun.step(offer(offered), &identity(binding, end_point)).unwrap();
            let sent = sent(step);
            assert!(sent.contains(mechanism) && sent.contains(header), "{sent:?}");
            assert!(!sent.contains("hunter2"));
        }
        let me = identity(ChannelBinding::Prefer, None);
        for offered in [&["SCRAM-SHA-512"][..], &[SCRAM_SHA_256_PLUS], &[]] {
            let error = Authentication::Begun.step(offer(offered), &me).unwrap_err();
            assert!(error.to_string().contains("neither SCRAM-SHA-256"), "{error}");
        }
    }

    #[test]
    fn a_server_that_skips_its_own_proof_isnt_believed() {
        let me = identity(ChannelBinding::Prefer, None);
        let mut scram = Authentication::Begun;
        let first = sent(scram.step(offer(&[SCRAM_SHA_256]), &me).unwrap());
        assert_eq!(scram.step(ok(), &me), Err(AuthError::OutOfTurn));
        assert_eq!(scram.step(ok(), &me), Err(AuthError::OutOfTurn), "nor later");

        let mut scram = Authentication::Begun;
        let again = sent(scram.step(offer(&[SCRAM_SHA_256]), &me).unwrap());
        assert_ne!(first, again, "nonces are used once");
        let nonce = again.split_once("r=").unwrap().1.to_owned();
        let challenge = format!("r={nonce}more,s=c2FsdA==,i=4096");
        let proof = sent(scram.step(message(11, challenge.as_bytes()), &me).unwrap());
        assert!(proof.contains(",p=") && !proof.contains("hunter2"), "{proof}");
        assert_eq!(scram.step(ok(), &me), Err(AuthError::OutOfTurn));

        let mut scram = Authentication::Begun;
        let again = sent(scram.step(offer(&[SCRAM_SHA_256]), &me).unwrap());
        let nonce = again.split_once("r=").unwrap().1.to_owned();
        let challenge = format!("r={nonce}more,s=c2FsdA==,i=4096");
        scram.step(message(11, challenge.as_bytes()), &me).unwrap();
        let error = scram.step(message(12, b"v=AAAA"), &me).unwrap_err();
        assert!(matches!(error, AuthError::Failed(_)), "it doesn't know the password: {error}");
    }

    #[test]
    fn what_isnt_known_here_is_said() {
        let me = identity(ChannelBinding::Prefer, None);
        for kind in [2, 7, 9] {
            let error = Authentication::Begun.step(message(kind, b""), &me).unwrap_err();
            assert!(error.to_string().contains("GSSAPI"), "{error}");
        }
        let first = message(11, b"r=x");
        assert_eq!(Authentication::Begun.step(first, &me), Err(AuthError::OutOfTurn));
    }
}
