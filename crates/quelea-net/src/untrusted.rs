//! Everything in this crate that reads what others send, as functions of the bytes: for fuzzing. This is no part of
//! the interface.
//!
//! Each returns whether the bytes were accepted. What must hold of accepted ones is asserted.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;

use quelea_control::{
    Command, MemberState, PeerMessage, RankEvent, StoredEntry, VectorLengths, ViewEntry,
};
use quelea_core::message::Rank;
use quelea_core::view::{DepartedRank, ViewChange};
use quelea_record::{Record, RecordKind};
use quelea_wire::control::{HEAD_BYTES, Reader};

use crate::launcher;
use crate::process_group;
use crate::protocol::{self, LineMessage, Packet, SetupMessage, Wait, WorkerMessage};
use crate::tensor_group;
use crate::trust::{
    Access, ControlStream, Credentials, JoinToken, LinkIdentity, RankKey, RankSeat, RunSecret,
    Security,
};

/// The longest packet that is read here.
const PACKET_BYTES: u64 = 64 << 10;
/// All bytes are there before they are read, so nobody waits.
const WAIT_SECONDS: f64 = 5.0;

/// A packet while a run is set up: joining, addresses, certificates.
pub fn setup_packet(bytes: &[u8]) -> bool {
    packet::<SetupMessage>(bytes).is_some()
}

/// A packet of the coordinator during the run.
pub fn command_packet(bytes: &[u8]) -> bool {
    packet::<Command>(bytes).is_some()
}

/// A packet of a worker during the run, heartbeats among them, as the coordinator of four ranks checks it.
pub fn event_packet(bytes: &[u8]) -> bool {
    let lengths = VectorLengths { model: 2, report: 2 };
    packet::<RankEvent>(bytes).is_some_and(|event| event.check(1, 4, lengths).is_ok())
}

/// A packet about who controls the run: on the connection of worker 1 to another, and of four ranks.
pub fn succession_packet(bytes: &[u8]) -> bool {
    let _ = packet::<LineMessage>(bytes);
    match packet::<WorkerMessage>(bytes) {
        Some(WorkerMessage::Peer(PeerMessage::Vote { state, .. })) => state.check(1, 4).is_ok(),
        Some(WorkerMessage::Peer(_)) => true,
        Some(WorkerMessage::Event(_)) | None => false,
    }
}

/// A vote of worker 1 with a view and a record.
pub fn example_vote() -> Vec<u8> {
    let departed = vec![DepartedRank { rank: Rank(3), steps: 7, left: false }];
    let change = ViewChange { number: 1, departed, joined: Vec::new(), from_step: 9 };
    let entry = ViewEntry { controller: 0, change };
    let event = RecordKind::Transfer { to: 1, bytes: 80, seconds: 0.5 };
    let state = MemberState {
        rank: 1,
        log: vec![entry.clone()],
        stored: Some(StoredEntry { term: 1, entry }),
        records: vec![Record { t: 0.5, rank: 0, step: 3, event }],
        ..MemberState::default()
    };
    PeerMessage::Vote { term: 2, state: Box::new(state) }.encode()
}

/// A join token that is accepted.
pub fn example_token() -> String {
    let fingerprint = std::array::from_fn(|i| i as u8);
    let address = "10.0.0.1:29470".into();
    JoinToken { address, fingerprint, secret: known_secret(), expires: 1_800_000_000 }.reveal()
}

/// The text of a join token with the check that its other bytes need.
pub fn repair_token(text: &str) -> Option<String> {
    JoinToken::with_check(text)
}

/// Reads a packet; what was read is written and read again as the same bytes.
fn packet<P: Packet>(bytes: &[u8]) -> Option<P> {
    let packet: P = protocol::read_body(bytes, PACKET_BYTES).ok()?;
    let written = packet.encode();
    let kind = u16::from_le_bytes([written[6], written[7]]);
    let again = P::decode(&mut Reader::new(kind, &written[HEAD_BYTES..]), kind);
    let again = again.expect("what was written can be read");
    assert!(again.encode() == written, "what was read is what was written");
    Some(packet)
}

/// A call among the processes of a group.
pub fn group_frame(bytes: &[u8]) -> bool {
    with_stream(bytes, |stream| process_group::takes_frame(&ControlStream::plain(stream)))
}

/// Frames between two ranks of a tensor group.
pub fn tensor_frames(bytes: &[u8]) -> bool {
    with_stream(bytes, |stream| {
        tensor_group::take_frames(stream);
        true
    })
}

/// Frames of a tensor group of every kind.
pub fn example_tensor_frames() -> Vec<Vec<u8>> {
    tensor_group::example_frames()
}

/// What a visitor says to a coordinator: the TLS handshake and the proof.
pub fn visitor_handshake(bytes: &[u8]) -> bool {
    let wait = Wait::new(WAIT_SECONDS, "a handshake");
    with_stream(bytes, |stream| ControlStream::admit(stream, Some(access()), wait).is_ok())
}

/// What somebody who listens says to a worker that joins.
pub fn listener_handshake(bytes: &[u8]) -> bool {
    let wait = Wait::new(WAIT_SECONDS, "a handshake");
    with_stream(bytes, |stream| ControlStream::enter(stream, &known_secret(), None, wait).is_ok())
}

/// The first bytes that a worker sends to a coordinator.
pub fn example_hello() -> Vec<u8> {
    let (mut near, far) = UnixStream::pair().expect("two sockets");
    let reader = std::thread::spawn(move || {
        let mut hello = vec![0; 4096];
        let count = near.read(&mut hello).unwrap_or(0);
        hello.truncate(count);
        hello
    });
    let far = TcpStream::from(OwnedFd::from(far));
    let _ = ControlStream::enter(far, &known_secret(), None, Wait::new(WAIT_SECONDS, "nothing"));
    reader.join().expect("reading does not panic")
}

/// What a coordinator answers to a worker's first bytes.
pub fn example_answer(hello: &[u8]) -> Vec<u8> {
    let (mut near, far) = UnixStream::pair().expect("two sockets");
    near.write_all(hello).expect("the socket holds a hello");
    let _ = near.shutdown(Shutdown::Write);
    let far = TcpStream::from(OwnedFd::from(far));
    let _ = ControlStream::admit(far, Some(access()), Wait::new(WAIT_SECONDS, "a handshake"));
    let mut answer = Vec::new();
    let _ = near.read_to_end(&mut answer);
    answer
}

/// To a run of this process.
fn access() -> &'static Access {
    static ACCESS: OnceLock<Access> = OnceLock::new();
    ACCESS.get_or_init(|| {
        let security = Security::Secret(known_secret());
        let access = Access::new(1, [127, 0, 0, 1].into(), &security, 1.0);
        access.expect("a key can be made").expect("a secret was given")
    })
}

fn known_secret() -> RunSecret {
    RunSecret::from_text("here", "as long as a secret has to be").expect("long enough")
}

/// A certificate and its root, as a worker gets them from a coordinator and as ranks show them to each other. The
/// first two bytes are the length of the certificate.
pub fn certificates(bytes: &[u8]) -> bool {
    static OWN: OnceLock<(RankKey, LinkIdentity)> = OnceLock::new();
    let (key, identity) = OWN.get_or_init(|| {
        let key = RankKey::new().expect("a key can be made");
        let credentials = example_credentials(&key);
        let identity = key.identity(1, &credentials).expect("its own certificate");
        identity.seats().give(RankSeat { rank: 2, times: 1 });
        (key, identity)
    });
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else { return false };
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (certificate, root) = rest.split_at(length);
    let is_named = identity.names(&certificate.into(), 2);
    let credentials = Credentials { certificate: certificate.to_vec(), root: root.to_vec() };
    key.identity(1, &credentials).is_ok() && is_named
}

/// A good certificate for rank 2 of run 1 and its root, as [`certificates`] reads them.
pub fn example_certificates() -> Vec<u8> {
    let credentials = example_credentials(&RankKey::new().expect("a key can be made"));
    let length = u16::try_from(credentials.certificate.len()).expect("certificates are short");
    [&length.to_le_bytes(), &credentials.certificate[..], &credentials.root].concat()
}

fn example_credentials(key: &RankKey) -> Credentials {
    let seat = RankSeat { rank: 2, times: 1 };
    access().authority.certify(seat, key.public()).expect("a key of its own")
}

/// The public key for which a worker asks for a certificate.
pub fn certified_key(bytes: &[u8]) -> bool {
    access().authority.certify(RankSeat { rank: 2, times: 1 }, bytes).is_ok()
}

/// The environment of a launcher, `NAME=VALUE` a line.
pub fn launcher_environment(text: &str) -> bool {
    let find = |name: &str| {
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs.filter(|(known, _)| *known == name).map(|(_, value)| value.to_string()).next()
    };
    let security = Security::from_env(|name| find(name).filter(|_| name != "QUELEA_SECRET_FILE"));
    launcher::detect(find).is_ok() && security.is_ok()
}

/// A connection over which exactly these bytes come.
fn with_stream(bytes: &[u8], read: impl FnOnce(TcpStream) -> bool) -> bool {
    let Ok((mut near, far)) = UnixStream::pair() else { return false };
    // More than the kernel holds would need a thread; it is not needed to find mistakes.
    if near.set_nonblocking(true).is_err() || near.write_all(bytes).is_err() {
        return false;
    }
    let _ = near.shutdown(Shutdown::Write);
    read(TcpStream::from(OwnedFd::from(far)))
}
