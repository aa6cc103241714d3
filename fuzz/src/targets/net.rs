//! Packets, handshakes, certificates, tokens and frames of `quelea-net`.

use std::str::FromStr;
use std::time::SystemTime;

use quelea_net::{JoinToken, untrusted};
use quelea_wire::control::encode;

use super::wire::repair_packet;
use crate::corpus;
use crate::target::{FuzzTarget, InputFolder, InputFormat, as_it_is};

/// The targets of `quelea-net`.
pub const TARGETS: &[FuzzTarget] = &[
    packets("setup-packet", "protocol::read_body::<SetupMessage>", setup_seeds, |bytes, _| {
        untrusted::setup_packet(bytes);
    }),
    packets("command-packet", "protocol::read_body::<Command>", command_seeds, |bytes, _| {
        untrusted::command_packet(bytes);
    }),
    packets(
        "event-packet",
        "protocol::read_body::<RankEvent>, RankEvent::check",
        event_seeds,
        |bytes, _| {
            untrusted::event_packet(bytes);
        },
    ),
    packets(
        "succession-packet",
        "protocol::read_body::<WorkerMessage>, <LineMessage>, MemberState::check",
        succession_seeds,
        |bytes, _| {
            untrusted::succession_packet(bytes);
        },
    ),
    FuzzTarget {
        name: "group-frame",
        function: "quelea_net::process_group::frames::read_up_to",
        seeds: group_frames,
        // A mebibyte at a time, as it comes.
        memory_bytes: 3 << 20,
        share: 2,
        ..binary(|bytes, _| {
            untrusted::group_frame(bytes);
        })
    },
    FuzzTarget {
        name: "tensor-frame",
        function: "quelea_net::tensor_group::link::Link::read",
        seeds: untrusted::example_tensor_frames,
        share: 2,
        memory_bytes: 1 << 20,
        ..binary(|bytes, _| {
            untrusted::tensor_frames(bytes);
        })
    },
    FuzzTarget {
        name: "handshake",
        function: "quelea_net::trust::ControlStream::admit",
        memory_bytes: 2 << 20,
        ..binary(|bytes, _| {
            untrusted::visitor_handshake(bytes);
        })
    },
    FuzzTarget {
        name: "handshake-answer",
        function: "quelea_net::trust::ControlStream::enter",
        memory_bytes: 2 << 20,
        ..binary(|bytes, _| {
            untrusted::listener_handshake(bytes);
        })
    },
    FuzzTarget {
        name: "certificate",
        function: "quelea_net::trust::{RankKey::identity, LinkIdentity::names}",
        memory_bytes: 2 << 20,
        share: 2,
        ..binary(|bytes, _| {
            untrusted::certificates(bytes);
        })
    },
    FuzzTarget {
        name: "certified-key",
        function: "quelea_net::trust::RunAuthority::certify",
        seeds: || vec![vec![4; 65], vec![]],
        memory_bytes: 1 << 20,
        ..binary(|bytes, _| {
            untrusted::certified_key(bytes);
        })
    },
    FuzzTarget {
        name: "token",
        function: "quelea_net::JoinToken::from_str",
        format: InputFormat::Text,
        seeds: tokens,
        repair: repair_token,
        share: 8,
        memory_bytes: 512 << 10,
        ..binary(read_token)
    },
    FuzzTarget {
        name: "launcher",
        function: "quelea_net::launcher::detect, Security::from_env",
        format: InputFormat::Text,
        seeds: environments,
        share: 4,
        memory_bytes: 512 << 10,
        ..binary(|bytes, _| {
            untrusted::launcher_environment(&String::from_utf8_lossy(bytes));
        })
    },
];

/// Writes seeds that have random numbers in them into the corpus: handshakes and certificates.
pub fn save_seeds() -> anyhow::Result<()> {
    let hello = untrusted::example_hello();
    let answer = untrusted::example_answer(&hello);
    let certificates = untrusted::example_certificates();
    for (target, bytes) in
        [("handshake", hello), ("handshake-answer", answer), ("certificate", certificates)]
    {
        let folder = corpus::folder().join(target);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("good"), bytes)?;
    }
    Ok(())
}

/// What most targets of bytes have in common.
const fn binary(read: fn(&[u8], &InputFolder)) -> FuzzTarget {
    FuzzTarget {
        name: "",
        function: "",
        format: InputFormat::Binary,
        seeds: Vec::new,
        repair: as_it_is,
        read,
        share: 1,
        memory_bytes: 1 << 20,
    }
}

const fn packets(
    name: &'static str,
    function: &'static str,
    seeds: fn() -> Vec<Vec<u8>>,
    read: fn(&[u8], &InputFolder),
) -> FuzzTarget {
    let repair = repair_packet;
    FuzzTarget { name, function, seeds, repair, share: 8, memory_bytes: 2 << 20, ..binary(read) }
}

/// Packets of every kind in a range whose fields are zero, found by trying lengths: new kinds need no line here.
fn zero_packets(kinds: std::ops::Range<u16>, reads: fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
    let lengths = || (0..40).flat_map(|words| [8 * words]);
    let all = kinds.flat_map(|kind| lengths().map(move |length| encode(kind, &vec![0; length])));
    all.filter(|packet| reads(packet)).collect()
}

fn setup_seeds() -> Vec<Vec<u8>> {
    zero_packets(0..100, untrusted::setup_packet)
}

fn command_seeds() -> Vec<Vec<u8>> {
    zero_packets(100..200, untrusted::command_packet)
}

/// Events of rank 1, which is the only one that is believed on its connection.
fn event_seeds() -> Vec<Vec<u8>> {
    let of_rank_one = |kind: u16, words: usize, at: usize| {
        let mut body = vec![0; 8 * words];
        if let Some(byte) = body.get_mut(8 * at) {
            *byte = 1;
        }
        encode(kind, &body)
    };
    let mut seeds = Vec::new();
    for kind in 200..240 {
        for words in 0..40 {
            let packets = [of_rank_one(kind, words, 0), of_rank_one(kind, words, 1)];
            seeds.extend(packets.into_iter().filter(|packet| untrusted::event_packet(packet)));
        }
    }
    // Those that carry vectors are accepted with vectors of the model's length only.
    for kind in [204, 211, 212, 217] {
        seeds.push(encode(kind, &[0; 160]));
    }
    seeds
}

fn succession_seeds() -> Vec<Vec<u8>> {
    let mut seeds = zero_packets(300..310, untrusted::succession_packet);
    seeds.push(untrusted::example_vote());
    seeds
}

fn group_frames() -> Vec<Vec<u8>> {
    let frame = |good: u8, what: &str, body: &[u8]| {
        let length = (body.len() as u64).to_le_bytes();
        [&[good, what.len() as u8], what.as_bytes(), &length, body].concat()
    };
    vec![frame(1, "barrier", b""), frame(0, "average", b"why"), frame(1, "", &[7; 300])]
}

fn tokens() -> Vec<Vec<u8>> {
    ["quelea:[fd00::1]:1:AQ", "quelea:h:65535:", &untrusted::example_token()]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
}

/// Most changes of a token would be seen by its check, and nothing behind that be tried.
fn repair_token(bytes: &mut Vec<u8>) {
    let repaired = std::str::from_utf8(bytes).ok().and_then(untrusted::repair_token);
    if let Some(repaired) = repaired {
        *bytes = repaired.into_bytes();
    }
}

fn read_token(bytes: &[u8], _: &InputFolder) {
    let text = String::from_utf8_lossy(bytes);
    let _ = JoinToken::is_token(&text);
    if let Ok(token) = JoinToken::from_str(&text) {
        let _ = token.check_expiry(SystemTime::UNIX_EPOCH);
        assert_eq!(token.reveal().parse::<JoinToken>().expect("its own text"), token);
    }
}

fn environments() -> Vec<Vec<u8>> {
    let texts = [
        "RANK=1\nWORLD_SIZE=4\nMASTER_ADDR=10.0.0.1\nMASTER_PORT=29500\nLOCAL_RANK=1\n",
        "SLURM_PROCID=1\nSLURM_NTASKS=8\nSLURM_JOB_ID=77\nSLURM_JOB_NUM_NODES=3\nSLURM_JOB_NODELIST=gpu[04-05,9],x1\n",
        "OMPI_COMM_WORLD_RANK=2\nOMPI_COMM_WORLD_SIZE=4\nPMIX_NAMESPACE=1234/5\nQUELEA_INSECURE=1\n",
        "QUELEA_RANK=0\nQUELEA_WORLD_SIZE=2\nQUELEA_RENDEZVOUS=[fd00::1]:7\nQUELEA_SECRET=0123456789abcdef0123\n",
        "JOB_COMPLETION_INDEX=3\nQUELEA_WORLD_SIZE=4\nQUELEA_RENDEZVOUS=train-0.train\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}
