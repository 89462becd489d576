//! Authentication: cleartext password, MD5, or SCRAM-SHA-256 with channel binding.
//!
//! Invariants: SCRAM succeeds only after the server's signature was verified, which proves that it
//! has the password's verifier. With `channel_binding=require`, authentication succeeds only if it
//! is bound to the TLS connection. No error contains the password.
//! Enforced by: [`Authentication::step`], which refuses messages out of order.
//! Out of scope: sockets. The caller passes messages in and sends the returned bytes.

use std::mem;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use forebay_reservoir::ChannelBinding;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256};
use postgres_protocol::message::backend::{AuthenticationSaslBody, Message};
use postgres_protocol::message::frontend;

/// User, password and channel binding of the client.
pub(super) struct Identity<'a> {
    pub(super) user: &'a str,
    pub(super) password: Option<&'a str>,
    pub(super) binding: ChannelBinding,
    /// Hash of the server's certificate (`tls-server-end-point`); `None` without TLS, or if
    /// undefined.
    pub(super) server_end_point: Option<Vec<u8>>,
}

/// Why authentication failed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AuthError {
    /// The server requests a password, and none is configured.
    #[error("the server requests a password, and none is configured")]
    NoPassword,
    /// The methods of client and server don't match, or the server's proof is wrong.
    #[error("{0}")]
    Failed(String),
    /// The server sent an authentication message out of order.
    #[error("authentication message out of order")]
    OutOfOrder,
}

/// The next action of the caller.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AuthStep {
    /// Send these bytes, then read the next message.
    Send(BytesMut),
    /// Read the next message.
    Wait,
    /// Authentication succeeded.
    Done,
}

/// State of the authentication.
pub(super) enum Authentication {
    Started,
    /// The password or its hash was sent; the server's result is pending.
    PasswordSent,
    ScramStarted(ScramSha256),
    ScramResponded(ScramSha256),
    /// The server's SCRAM signature was verified.
    ServerVerified,
    /// Succeeded or failed; takes no more messages.
    Finished,
}

impl Authentication {
    /// Handles the server's next message. The caller handles `ErrorResponse` and `NoticeResponse`.
    pub(super) fn step(&mut self, message: Message, identity: &Identity<'_>) -> Result<AuthStep, AuthError> {
        let before = mem::replace(self, Authentication::Finished);
        let (after, step) = match before {
            Authentication::Started => start(message, identity)?,
            Authentication::PasswordSent | Authentication::ServerVerified => match message {
                Message::AuthenticationOk => (Authentication::Finished, AuthStep::Done),
                _ => return Err(AuthError::OutOfOrder),
            },
            Authentication::ScramStarted(mut scram) => match message {
                Message::AuthenticationSaslContinue(body) => {
                    scram.update(body.data()).map_err(failed)?;
                    let mut out = BytesMut::new();
                    frontend::sasl_response(scram.message(), &mut out).map_err(failed)?;
                    (Authentication::ScramResponded(scram), AuthStep::Send(out))
                }
                _ => return Err(AuthError::OutOfOrder),
            },
            Authentication::ScramResponded(mut scram) => match message {
                Message::AuthenticationSaslFinal(body) => {
                    scram.finish(body.data()).map_err(failed)?;
                    (Authentication::ServerVerified, AuthStep::Wait)
                }
                _ => return Err(AuthError::OutOfOrder),
            },
            Authentication::Finished => return Err(AuthError::OutOfOrder),
        };
        *self = after;
        Ok(step)
    }
}

fn start(message: Message, identity: &Identity<'_>) -> Result<(Authentication, AuthStep), AuthError> {
    let password = || identity.password.ok_or(AuthError::NoPassword);
    let send = |password: &[u8]| {
        let mut out = BytesMut::new();
        frontend::password_message(password, &mut out).map_err(failed)?;
        Ok((Authentication::PasswordSent, AuthStep::Send(out)))
    };
    match message {
        Message::AuthenticationOk => {
            identity.check_unbound_allowed()?;
            Ok((Authentication::Finished, AuthStep::Done))
        }
        Message::AuthenticationCleartextPassword => {
            identity.check_unbound_allowed()?;
            send(password()?.as_bytes())
        }
        Message::AuthenticationMd5Password(body) => {
            identity.check_unbound_allowed()?;
            send(md5_hash(identity.user.as_bytes(), password()?.as_bytes(), body.salt()).as_bytes())
        }
        Message::AuthenticationSasl(body) => {
            let (binding, mechanism) = identity.mechanism(&body)?;
            let scram = ScramSha256::new(password()?.as_bytes(), binding);
            let mut out = BytesMut::new();
            frontend::sasl_initial_response(mechanism, scram.message(), &mut out).map_err(failed)?;
            Ok((Authentication::ScramStarted(scram), AuthStep::Send(out)))
        }
        Message::AuthenticationGss
        | Message::AuthenticationSspi
        | Message::AuthenticationKerberosV5
        | Message::AuthenticationScmCredential => Err(AuthError::Failed(
            "the server requests Kerberos, GSSAPI or SSPI, which isn't supported: configure scram-sha-256 for this user in \
             pg_hba.conf"
                .to_owned(),
        )),
        _ => Err(AuthError::OutOfOrder),
    }
}

impl Identity<'_> {
    /// Fails if channel binding is required.
    fn check_unbound_allowed(&self) -> Result<(), AuthError> {
        match self.binding {
            ChannelBinding::Disable | ChannelBinding::Prefer => Ok(()),
            ChannelBinding::Require => Err(AuthError::Failed(
                "the server offers no channel binding, which channel_binding=require needs: enable TLS and configure \
                 scram-sha-256 in pg_hba.conf"
                    .to_owned(),
            )),
        }
    }

    /// Chooses the SASL mechanism and the channel binding.
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
            // A server that offered SCRAM-SHA-256-PLUS detects by this that a man in the middle
            // removed it.
            Some(_) => (sasl::ChannelBinding::unrequested(), SCRAM_SHA_256),
            None => (sasl::ChannelBinding::unsupported(), SCRAM_SHA_256),
        };
        if mechanism != SCRAM_SHA_256_PLUS {
            if !has_scram {
                let problem = "the server offers neither SCRAM-SHA-256 nor a usable variant of it";
                return Err(AuthError::Failed(problem.to_owned()));
            }
            self.check_unbound_allowed()?;
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

    fn sent(step: AuthStep) -> String {
        match step {
            AuthStep::Send(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn trust_authentication_is_accepted_unless_channel_binding_is_required() {
        let mut trusting = Authentication::Started;
        assert_eq!(trusting.step(ok(), &identity(ChannelBinding::Prefer, None)), Ok(AuthStep::Done));
        for asked in [ok(), message(3, b""), message(5, b"salt"), offer(&[SCRAM_SHA_256])] {
            let bound = identity(ChannelBinding::Require, Some(b"hash"));
            let error = Authentication::Started.step(asked, &bound).unwrap_err();
            assert!(error.to_string().contains("channel_binding=require"), "{error}");
        }
    }

    #[test]
    fn the_password_is_sent_in_the_requested_form() {
        let me = identity(ChannelBinding::Prefer, None);
        let mut clear = Authentication::Started;
        assert_eq!(sent(clear.step(message(3, b""), &me).unwrap()), "p\0\0\0\x0chunter2\0");
        assert_eq!(clear.step(ok(), &me), Ok(AuthStep::Done));
        let mut hashed = Authentication::Started;
        let hash = sent(hashed.step(message(5, b"salt"), &me).unwrap());
        assert!(hash.contains("md5") && !hash.contains("hunter2"), "{hash}");
        assert_eq!(hashed.step(ok(), &me), Ok(AuthStep::Done));
    }

    #[test]
    fn a_missing_password_is_an_error() {
        let without_password = Identity { password: None, ..identity(ChannelBinding::Prefer, None) };
        for asked in [message(3, b""), message(5, b"salt"), offer(&[SCRAM_SHA_256])] {
            assert_eq!(Authentication::Started.step(asked, &without_password), Err(AuthError::NoPassword));
        }
    }

    #[test]
    fn the_channel_is_bound_if_both_sides_support_it() {
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
            let step = Authentication::Started.step(offer(offered), &identity(binding, end_point)).unwrap();
            let sent = sent(step);
            assert!(sent.contains(mechanism) && sent.contains(header), "{sent:?}");
            assert!(!sent.contains("hunter2"));
        }
        let me = identity(ChannelBinding::Prefer, None);
        for offered in [&["SCRAM-SHA-512"][..], &[SCRAM_SHA_256_PLUS], &[]] {
            let error = Authentication::Started.step(offer(offered), &me).unwrap_err();
            assert!(error.to_string().contains("neither SCRAM-SHA-256"), "{error}");
        }
    }

    #[test]
    fn a_server_that_skips_its_proof_is_refused() {
        let me = identity(ChannelBinding::Prefer, None);
        let mut scram = Authentication::Started;
        let first = sent(scram.step(offer(&[SCRAM_SHA_256]), &me).unwrap());
        assert_eq!(scram.step(ok(), &me), Err(AuthError::OutOfOrder));
        assert_eq!(scram.step(ok(), &me), Err(AuthError::OutOfOrder), "nor later");

        let mut scram = Authentication::Started;
        let again = sent(scram.step(offer(&[SCRAM_SHA_256]), &me).unwrap());
        assert_ne!(first, again, "nonces are used once");
        let nonce = again.split_once("r=").unwrap().1.to_owned();
        let challenge = format!("r={nonce}more,s=c2FsdA==,i=4096");
        let proof = sent(scram.step(message(11, challenge.as_bytes()), &me).unwrap());
        assert!(proof.contains(",p=") && !proof.contains("hunter2"), "{proof}");
        assert_eq!(scram.step(ok(), &me), Err(AuthError::OutOfOrder));

        let mut scram = Authentication::Started;
        let again = sent(scram.step(offer(&[SCRAM_SHA_256]), &me).unwrap());
        let nonce = again.split_once("r=").unwrap().1.to_owned();
        let challenge = format!("r={nonce}more,s=c2FsdA==,i=4096");
        scram.step(message(11, challenge.as_bytes()), &me).unwrap();
        let error = scram.step(message(12, b"v=AAAA"), &me).unwrap_err();
        assert!(matches!(error, AuthError::Failed(_)), "a wrong proof: {error}");
    }

    #[test]
    fn unsupported_methods_are_named_in_the_error() {
        let me = identity(ChannelBinding::Prefer, None);
        for kind in [2, 7, 9] {
            let error = Authentication::Started.step(message(kind, b""), &me).unwrap_err();
            assert!(error.to_string().contains("GSSAPI"), "{error}");
        }
        let first = message(11, b"r=x");
        assert_eq!(Authentication::Started.step(first, &me), Err(AuthError::OutOfOrder));
    }
}
