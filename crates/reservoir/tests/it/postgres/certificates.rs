//! Temporary certificate authorities, and a Postgres server with TLS.

use forebay_testkit::sandbox::Postgres;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SignatureAlgorithm,
};

use super::run;

/// Password of all servers with TLS.
pub(super) const PASSWORD: &str = "correct horse";

pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// Certificate and key in PEM.
pub(super) struct Certificate {
    pub(super) pem: String,
    pub(super) key: String,
}

impl Authority {
    pub(super) fn new() -> Self {
        Authority::with(&PKCS_ECDSA_P256_SHA256)
    }

    /// Creates an authority that signs with this algorithm.
    pub(super) fn with(algorithm: &'static SignatureAlgorithm) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "throwaway authority");
        let key = KeyPair::generate_for(algorithm).unwrap();
        Authority(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub(super) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(super) fn server(&self, names: &[&str]) -> Certificate {
        self.sign(names, "server", ExtendedKeyUsagePurpose::ServerAuth)
    }

    pub(super) fn client(&self, user: &str) -> Certificate {
        self.sign(&[], user, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, names: &[&str], common_name: &str, usage: ExtendedKeyUsagePurpose) -> Certificate {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        let key = KeyPair::generate().unwrap();
        let pem = params.signed_by(&key, &self.0).unwrap().pem();
        Certificate { pem, key: key.serialize_pem() }
    }
}

/// Returns a self-signed certificate that is marked as CA, as `openssl req -x509` creates it.
pub(super) fn self_signed(name: &str) -> Certificate {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    Certificate { pem: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
}

/// Starts a server with TLS that requires [`PASSWORD`].
pub(super) fn start(certificate: &Certificate) -> Postgres {
    let postgres = Postgres::builder().password(PASSWORD).start().unwrap();
    encrypt(&postgres, certificate);
    postgres
}

/// Installs this certificate and restarts the server. The server writes the files, because it must
/// own the key.
pub(super) fn encrypt(postgres: &Postgres, certificate: &Certificate) {
    write(postgres, "server.crt", &certificate.pem);
    write(postgres, "server.key", &certificate.key);
    run(postgres, &["ALTER SYSTEM SET ssl = on"]);
    postgres.restart().unwrap();
}

/// Writes a file to the server's data directory, as the server's user.
pub(super) fn write(postgres: &Postgres, name: &str, text: &str) {
    let rows = format!("SELECT unnest(string_to_array($text${text}$text$, E'\\n'))");
    run(postgres, &[&format!("COPY ({rows}) TO PROGRAM 'umask 077 && cat > {name}'")]);
}
