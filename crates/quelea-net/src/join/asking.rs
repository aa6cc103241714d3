//! How a worker finds the coordinator, asks to take part, and learns the time.

use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

use super::coordinator_reader::unexpected;
use super::entrance::JoinTarget;
use crate::clock::RunClock;
use crate::error::NetError;
use crate::launcher;
use crate::options::NetOptions;
use crate::protocol::{self, JOB_BYTES, PacketError, SMALL_BYTES, SetupMessage, Wait};
use crate::rendezvous::stand_by::{SILENCE_SECONDS, SeatWish};
use crate::transport::tcp::prepare;
use crate::trust::{self, ControlStream};

/// The coordinator's answer to a worker that may take part.
pub(super) struct Welcome {
    pub(super) run: u64,
    pub(super) rank: u32,
    pub(super) open: bool,
    pub(super) timeline: bool,
    pub(super) late: bool,
    pub(super) shares: bool,
    pub(super) reconnect_seconds: f64,
    pub(super) job: Vec<u8>,
}

/// Finds the coordinator at one of these places and asks to take part; tries again until it is there.
pub(super) fn ask(
    entrances: &[JoinTarget],
    wish: SeatWish,
    options: &NetOptions,
) -> Result<(ControlStream, Welcome), NetError> {
    let begun = Instant::now();
    let limit = Duration::from_secs_f64(options.connect_seconds);
    let mut pause = Duration::from_millis(2);
    // Some of several places may be out of reach for this machine; all are tried twice.
    let share = if entrances.len() > 1 { 2 * entrances.len() as u32 } else { 1 };
    for entrance in entrances.iter().cycle() {
        let problem = match launcher::resolve(entrance.address()) {
            Ok((address, key)) => {
                let target = AskedPlace { address, key, limit: limit / share };
                match ask_around(entrance, target, wish, options)? {
                    Ok(welcomed) => return Ok(welcomed),
                    Err(problem) => problem,
                }
            }
            Err(problem) => problem,
        };
        if begun.elapsed() + pause >= limit {
            let seconds = begun.elapsed().as_secs_f64();
            let address = entrance.address().to_string();
            return Err(NetError::Connect { address, seconds, problem });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
    Err(NetError::Setup("the coordinator has not said where it listens".into()))
}

/// How often a worker is sent to another process: the one that controls the run may change meanwhile.
const REDIRECTIONS: u32 = 4;

/// Where somebody asks to take part.
struct AskedPlace {
    address: String,
    /// The run's name there; empty where there is none.
    key: String,
    limit: Duration,
}

/// What a process of the run answers.
enum AskAnswer {
    /// It may take part.
    Welcomed(ControlStream, Welcome),
    /// Another process controls the run, and listens there.
    Redirected(String),
    /// Why that may pass: nobody listens yet, or somebody else does.
    Passing(String),
}

/// Asks a process of the run, and the one that it names, if it does not control the run itself. The inner
/// error is one that may pass.
fn ask_around(
    entrance: &JoinTarget,
    mut place: AskedPlace,
    wish: SeatWish,
    options: &NetOptions,
) -> Result<Result<(ControlStream, Welcome), String>, NetError> {
    for _ in 0..REDIRECTIONS {
        let before = place.address.clone();
        match ask_once(entrance, &place, wish, options)? {
            AskAnswer::Welcomed(stream, welcome) => return Ok(Ok((stream, welcome))),
            AskAnswer::Passing(problem) => return Ok(Err(problem)),
            AskAnswer::Redirected(address) => {
                options.security.check_host(trust::host_of(&address))?;
                place = AskedPlace { address, key: String::new(), limit: place.limit };
            }
        }
        if place.address == before {
            break;
        }
    }
    Ok(Err(format!("it sends workers to {}, and that one to others", place.address)))
}

fn ask_once(
    entrance: &JoinTarget,
    place: &AskedPlace,
    wish: SeatWish,
    options: &NetOptions,
) -> Result<AskAnswer, NetError> {
    let AskedPlace { address, key, limit } = place;
    let address = address.as_str();
    let stream = match address.to_socket_addrs().map(|mut found| found.next()) {
        Ok(Some(target)) => options.local.connect(&target, *limit),
        Ok(None) => return Ok(AskAnswer::Passing("the name has no address".into())),
        Err(error) => Err(error),
    };
    let stream = match stream {
        Ok(stream) => stream,
        Err(error) => return Ok(AskAnswer::Passing(error.to_string())),
    };
    let wrong = |error: PacketError| NetError::Handshake {
        address: address.into(),
        problem: error.to_string(),
    };
    prepare(&stream, options.connect_seconds).map_err(|error| wrong(error.into()))?;
    let stream = match entrance.enter(stream, address, options)? {
        Ok(stream) => stream,
        Err(problem) => return Ok(AskAnswer::Passing(problem)),
    };
    protocol::write(&stream, &wish.request(key)).map_err(wrong)?;
    let wait = Wait::new(options.connect_seconds, "an answer");
    let mut answer = protocol::read(&stream, JOB_BYTES + SMALL_BYTES, Some(wait));
    if wish == SeatWish::Lost && matches!(answer, Ok(SetupMessage::Alive)) {
        answer = await_loss(&stream, address)?;
    }
    match answer.map_err(|error| entrance.explain(wrong(error)))? {
        SetupMessage::Welcome { run, rank, open, timeline, late, shares, reconnect, job } => {
            let reconnect_seconds = reconnect.seconds();
            let welcome =
                Welcome { run, rank, open, timeline, late, shares, reconnect_seconds, job };
            Ok(AskAnswer::Welcomed(stream, welcome))
        }
        SetupMessage::Redirect { address } => Ok(AskAnswer::Redirected(address)),
        SetupMessage::Refused { reason, elsewhere: true } => Ok(AskAnswer::Passing(reason)),
        SetupMessage::Refused { reason, .. } => {
            Err(NetError::Refused { address: address.into(), reason })
        }
        other => Err(unexpected(address, &other)),
    }
}

/// Waits as a spare; what follows the signs that it may still be needed.
fn await_loss(
    stream: &ControlStream,
    address: &str,
) -> Result<Result<SetupMessage, PacketError>, NetError> {
    loop {
        let sign = Wait::new(SILENCE_SECONDS, "a sign that the run goes on");
        match protocol::read(stream, JOB_BYTES + SMALL_BYTES, Some(sign)) {
            Ok(SetupMessage::Alive) => {}
            Ok(SetupMessage::Refused { elsewhere: true, .. }) | Err(PacketError::Closed) => {
                return Err(NetError::Unneeded { address: address.into() });
            }
            answer => return Ok(answer),
        }
    }
}

/// The coordinator's clock, from the quickest of a few questions.
pub(super) fn synchronize(stream: &ControlStream, wait: Wait) -> Result<RunClock, PacketError> {
    let mut best: Option<(Duration, RunClock)> = None;
    for _ in 0..8 {
        let asked = Instant::now();
        protocol::write(stream, &SetupMessage::Ping)?;
        let answer = protocol::read(stream, SMALL_BYTES, Some(wait))?;
        let took = asked.elapsed();
        if let SetupMessage::Pong { now } = answer
            && best.is_none_or(|(least, _)| took < least)
        {
            best = Some((took, RunClock::showing(now, asked + took / 2)));
        }
    }
    Ok(best.map_or_else(RunClock::start, |(_, clock)| clock))
}
