//! Throwaway certificates: an authority, a server certificate signed by it, and a second authority.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// PEM texts. The authorities' keys are dropped, so nothing else can be signed by them.
pub(crate) struct Certificates {
    pub(crate) authority: String,
    /// Authority that didn't sign the certificate, for tests of clients that must reject the
    /// server.
    pub(crate) wrong_authority: String,
    pub(crate) server: String,
    pub(crate) server_key: String,
}

/// Creates certificates for `localhost`, `127.0.0.1` and `::1`.
pub(crate) fn make() -> Result<Certificates, rcgen::Error> {
    let authority = authority("throwaway authority")?;
    let names = ["localhost", "127.0.0.1", "::1"].map(String::from);
    let mut params = CertificateParams::new(names)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params.distinguished_name.push(DnType::CommonName, "localhost");
    let key = KeyPair::generate()?;
    let server = params.signed_by(&key, &authority)?;
    Ok(Certificates {
        authority: authority.pem(),
        wrong_authority: self::authority("another authority")?.pem(),
        server: server.pem(),
        server_key: key.serialize_pem(),
    })
}

fn authority(name: &str) -> Result<CertifiedIssuer<'static, KeyPair>, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate()?)
}
