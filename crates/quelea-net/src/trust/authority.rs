//! The key of a run and the certificates that it signs: one for the coordinator, one for every rank.
//!
//! The key lives in the coordinator's memory and ends with the run, and so do all its certificates, whatever
//! their dates say. A certificate names the ranks of its process and which time their seats were given:
//! `seat-1.rank-3.run-00c0ffee.quelea`. Where a seat was given again, peers accept its last holder only.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SignatureAlgorithm,
};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme,
};

use super::seats::{RankSeat, SharedSeats};
use super::secret::sha256;
use crate::error::NetError;

/// Clocks of two machines may differ by so much.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(24 * 3600);
/// How long certificates hold, for connections that are restored late in a long run.
const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// Signs the certificates of one run.
pub(crate) struct RunAuthority {
    run: u64,
    issuer: Issuer<'static, KeyPair>,
    /// The certificate that all others are checked against.
    root: CertificateDer<'static>,
    /// The coordinator's own certificate, which its listener shows.
    leaf: CertificateDer<'static>,
    listening: Arc<ServerConfig>,
}

impl fmt::Debug for RunAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunAuthority").field("run", &self.run).finish_non_exhaustive()
    }
}

/// What the coordinator gives a worker after it has proved to know the secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) certificate: Vec<u8>,
    pub(crate) root: Vec<u8>,
}

impl RunAuthority {
    /// A new key for run number `run`.
    pub(crate) fn new(run: u64) -> Result<RunAuthority, NetError> {
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("run-{run:016x}.quelea"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        set_dates(&mut params);
        let root = params.self_signed(&key).map_err(failed)?.der().clone();
        let issuer = Issuer::new(params, key);
        let own = KeyPair::generate().map_err(failed)?;
        let leaf = signed(&issuer, &own, vec![format!("coordinator.run-{run:016x}.quelea")])?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(tls_failed)?
            .with_no_client_auth()
            .with_single_cert(vec![leaf.clone()], private(&own))
            .map_err(tls_failed)?;
        config.send_tls13_tickets = 0;
        Ok(RunAuthority { run, issuer, root, leaf, listening: Arc::new(config) })
    }

    /// How the coordinator's listener introduces itself.
    pub(super) fn listening(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.listening)
    }

    /// SHA-256 of the coordinator's certificate.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        fingerprint(&self.leaf)
    }

    /// A certificate for the owner of a key that has been given a seat.
    pub(crate) fn certify(&self, seat: RankSeat, key: &[u8]) -> Result<Credentials, NetError> {
        let names = seat_names(self.run, &[seat]);
        let certificate = signed(&self.issuer, &RawKey(key.to_vec()), names)?;
        Ok(Credentials { certificate: certificate.to_vec(), root: self.root.to_vec() })
    }

    /// What the ranks of the coordinator's process show to others.
    pub(crate) fn own_identity(&self, ranks: &[u32]) -> Result<LinkIdentity, NetError> {
        let key = RankKey::new()?;
        let seats: Vec<RankSeat> =
            ranks.iter().map(|rank| RankSeat { rank: *rank, times: 1 }).collect();
        let certificate = signed(&self.issuer, &key.0, seat_names(self.run, &seats))?;
        let credentials =
            Credentials { certificate: certificate.to_vec(), root: self.root.to_vec() };
        key.identity(self.run, &credentials)
    }
}

fn set_dates(params: &mut CertificateParams) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let zero = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = zero + now.saturating_sub(CLOCK_DIFFERENCE);
    params.not_after = zero + (now + LIFETIME);
}

fn signed(
    issuer: &Issuer<'static, KeyPair>,
    key: &impl PublicKeyData,
    names: Vec<String>,
) -> Result<CertificateDer<'static>, NetError> {
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    set_dates(&mut params);
    Ok(params.signed_by(key, issuer).map_err(failed)?.der().clone())
}

fn rank_name(run: u64, rank: u32) -> String {
    format!("rank-{rank}.run-{run:016x}.quelea")
}

fn seat_names(run: u64, seats: &[RankSeat]) -> Vec<String> {
    let name = |seat: &RankSeat| format!("seat-{}.{}", seat.times, rank_name(run, seat.rank));
    seats.iter().map(name).collect()
}

/// A key of which only the public half is known here: a point on P-256, uncompressed.
struct RawKey(Vec<u8>);

impl PublicKeyData for RawKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

/// A worker's own key, which never leaves its process.
pub(crate) struct RankKey(KeyPair);

impl RankKey {
    pub(crate) fn new() -> Result<RankKey, NetError> {
        Ok(RankKey(KeyPair::generate().map_err(failed)?))
    }

    /// The half that the coordinator signs.
    pub(crate) fn public(&self) -> &[u8] {
        self.0.public_key_raw()
    }

    /// What this process shows to other ranks.
    pub(crate) fn identity(
        &self,
        run: u64,
        credentials: &Credentials,
    ) -> Result<LinkIdentity, NetError> {
        LinkIdentity::new(run, credentials, &self.0)
    }
}

/// What the ranks of a process show to others, and how they check what others show.
#[derive(Clone)]
pub(crate) struct LinkIdentity {
    run: u64,
    dialling: Arc<ClientConfig>,
    listening: Arc<ServerConfig>,
    seats: SharedSeats,
}

impl fmt::Debug for LinkIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkIdentity").field("run", &self.run).finish_non_exhaustive()
    }
}

impl LinkIdentity {
    fn new(run: u64, credentials: &Credentials, key: &KeyPair) -> Result<LinkIdentity, NetError> {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from(credentials.root.clone());
        roots.add(root).map_err(tls_failed)?;
        let (roots, provider) = (Arc::new(roots), provider());
        let certificate = vec![CertificateDer::from(credentials.certificate.clone())];
        let servers =
            WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| NetError::Setup(format!("cannot check certificates: {error}")))?;
        let dialling = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(tls_failed)?
            .with_webpki_verifier(servers)
            .with_client_auth_cert(certificate.clone(), private(key))
            .map_err(tls_failed)?;
        let clients = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|error| NetError::Setup(format!("cannot check certificates: {error}")))?;
        let mut listening = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(tls_failed)?
            .with_client_cert_verifier(clients)
            .with_single_cert(certificate, private(key))
            .map_err(tls_failed)?;
        listening.send_tls13_tickets = 0;
        Ok(LinkIdentity {
            run,
            dialling: Arc::new(without_names(dialling)),
            listening: Arc::new(listening),
            seats: SharedSeats::default(),
        })
    }

    /// Which seats are given, as far as this process knows.
    pub(crate) fn seats(&self) -> &SharedSeats {
        &self.seats
    }

    /// What the certificate of `rank` must name; nothing where its seat is not known.
    fn seat_name(&self, rank: u32) -> Result<ServerName<'static>, NetError> {
        let times = self.seats.times(rank);
        let Some(times) = times else {
            return Err(NetError::Setup(format!("the seat of rank {rank} is not known")));
        };
        server_name(format!("seat-{times}.{}", rank_name(self.run, rank)))
    }

    /// To dial `rank`, which must show a certificate of its own.
    pub(crate) fn dial(
        &self,
        rank: u32,
    ) -> Result<rustls::client::UnbufferedClientConnection, NetError> {
        let name = self.seat_name(rank)?;
        rustls::client::UnbufferedClientConnection::new(Arc::clone(&self.dialling), name)
            .map_err(tls_failed)
    }

    /// To be dialled by a rank that shows a certificate of this run.
    pub(crate) fn listen(&self) -> Result<rustls::server::UnbufferedServerConnection, NetError> {
        rustls::server::UnbufferedServerConnection::new(Arc::clone(&self.listening))
            .map_err(tls_failed)
    }

    /// Whether a certificate, which was checked to be of this run, is `rank`'s.
    pub(crate) fn names(&self, certificate: &CertificateDer<'_>, rank: u32) -> bool {
        let Ok(name) = self.seat_name(rank) else { return false };
        let parsed = webpki::EndEntityCert::try_from(certificate);
        parsed.is_ok_and(|parsed| parsed.verify_is_valid_for_subject_name(&name).is_ok())
    }
}

/// To find a coordinator with this fingerprint, or any, whose knowledge of the secret is checked afterwards.
pub(super) fn joining(
    fingerprint: Option<[u8; 32]>,
) -> Result<rustls::client::UnbufferedClientConnection, NetError> {
    let provider = provider();
    let verifier = PinnedServer { fingerprint, provider: Arc::clone(&provider) };
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(tls_failed)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    let name = server_name("coordinator.quelea".into())?;
    rustls::client::UnbufferedClientConnection::new(Arc::new(without_names(config)), name)
        .map_err(tls_failed)
}

/// Accepts the certificate with the token's fingerprint. Without one, any: whoever listens must then prove
/// that it knows the secret, bound to the certificate that it has shown.
#[derive(Debug)]
struct PinnedServer {
    fingerprint: Option<[u8; 32]>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.fingerprint {
            Some(expected) if expected != fingerprint(end_entity) => {
                Err(rustls::CertificateError::ApplicationVerificationFailure.into())
            }
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let schemes = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, schemes)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let schemes = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, schemes)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        None
    }
}

/// SHA-256 of a certificate.
pub(super) fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    sha256(&[certificate])
}

/// No names in the clear, and nothing kept for another connection.
fn without_names(mut config: ClientConfig) -> ClientConfig {
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_sni = false;
    config
}

/// One cipher: AES-GCM with 128 bits is the fastest where the processor has instructions for it.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites = vec![rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256];
    Arc::new(provider)
}

fn private(key: &KeyPair) -> PrivateKeyDer<'static> {
    PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()))
}

fn server_name(name: String) -> Result<ServerName<'static>, NetError> {
    ServerName::try_from(name).map_err(|error| NetError::Setup(format!("a certificate: {error}")))
}

fn failed(error: rcgen::Error) -> NetError {
    NetError::Setup(format!("cannot make a certificate: {error}"))
}

fn tls_failed(error: rustls::Error) -> NetError {
    NetError::Setup(format!("cannot set up encryption: {error}"))
}
