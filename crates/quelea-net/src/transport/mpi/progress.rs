//! The loop that moves all frames of this process: MPI moves nothing while nobody calls it.
//!
//! Every lane is a stream of bytes, cut into messages by its sender: a frame that is short is one message; of a
//! long one, the header is one and every vector another, which the receiver takes where the vector will stay.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use quelea_wire::decoder::Decoder;
use quelea_wire::frame;

use super::LinkError;
use super::calls::{Matched, MpiOperation, World};
use super::process::{
    Board, Delivery, Lane, MpiRequest, OutgoingFrame, Process, Receipt, Reception, SetupWord,
};

/// The tag of words; lanes have others.
pub(super) const WORDS: i32 = 0;
/// Vectors of this length and more travel by themselves; what is shorter is copied together.
const DIRECT_BYTES: usize = 16 << 10;
/// What is received through a buffer at most: a header and two parts that are not long.
const STAGED_BYTES: usize = 1 << 16;
/// The longest message: lengths of MPI have 31 bits.
const LONGEST: usize = 1 << 28;

/// For how long after something has moved the next is looked for without a pause.
const BUSY: Duration = Duration::from_micros(200);
/// For how long it is looked for often.
const ALERT: Duration = Duration::from_millis(20);
/// Between two looks then.
const SHORT_PAUSE: Duration = Duration::from_micros(20);
/// Between two looks later.
const LONG_PAUSE: Duration = Duration::from_millis(1);

/// What is on its way.
pub(super) struct MpiProgress<'a> {
    world: &'a World,
    board: &'a Board,
    sending: Vec<Sending>,
    lanes: BTreeMap<Lane, LaneState>,
    words: Vec<(Process, Incoming)>,
    is_ending: bool,
}

/// A frame or a word of which MPI has not taken all.
struct Sending {
    operations: Vec<MpiOperation>,
    /// What MPI reads from.
    _kept: (Vec<Vec<u8>>, Option<quelea_core::message::Message>),
    receipt: Option<Receipt>,
}

/// The receiving end of a lane.
#[derive(Default)]
struct LaneState {
    reception: Option<Reception>,
    /// Nobody wants its frames any more.
    is_over: bool,
    /// What is received now.
    incoming: Option<Incoming>,
    /// What comes after that.
    matched: VecDeque<Matched>,
}

/// A message that is being received.
struct Incoming {
    operation: MpiOperation,
    target: ReceiveTarget,
}

enum ReceiveTarget {
    /// The vector that the decoder fills; this many bytes of it.
    Direct(usize),
    Staged(Vec<u8>),
}

impl<'a> MpiProgress<'a> {
    pub(super) fn new(world: &'a World, board: &'a Board) -> MpiProgress<'a> {
        let (sending, words) = (Vec::new(), Vec::new());
        MpiProgress { world, board, sending, lanes: BTreeMap::new(), words, is_ending: false }
    }

    /// Moves frames until all processes have said goodbye.
    pub(super) fn run(&mut self, asked: &Receiver<MpiRequest>) -> io::Result<()> {
        let mut moved = Instant::now();
        loop {
            let mut is_busy = false;
            while let Ok(request) = asked.try_recv() {
                self.serve(request)?;
                is_busy = true;
            }
            is_busy |= self.advance()?;
            if self.has_ended() {
                return Ok(());
            }
            if is_busy {
                moved = Instant::now();
                continue;
            }
            let idle = moved.elapsed();
            if idle < BUSY {
                std::thread::yield_now();
                continue;
            }
            let pause = if idle < ALERT { SHORT_PAUSE } else { LONG_PAUSE };
            match asked.recv_timeout(pause) {
                Ok(request) => {
                    self.serve(request)?;
                    moved = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("nobody asks for anything any more"));
                }
            }
        }
    }

    fn serve(&mut self, request: MpiRequest) -> io::Result<()> {
        match request {
            MpiRequest::Tell(word) => self.tell(&word),
            MpiRequest::Attach(receptions) => {
                for (lane, reception) in receptions {
                    let state = self.lanes.entry(lane).or_default();
                    state.reception = Some(reception);
                }
                Ok(())
            }
            MpiRequest::Send(lane, frame) => {
                self.send(lane, frame);
                Ok(())
            }
            MpiRequest::Finish => {
                self.is_ending = true;
                self.tell(&SetupWord::Bye)
            }
        }
    }

    fn tell(&mut self, word: &SetupWord) -> io::Result<()> {
        let own = self.world.own();
        for process in (0..self.world.processes()).filter(|process| *process != own) {
            let bytes = word.encode();
            // SAFETY: the bytes are kept, where they are, until the operation is complete.
            let operation = unsafe { self.world.send(&bytes, process, WORDS)? };
            let _kept = (vec![bytes], None);
            self.sending.push(Sending { operations: vec![operation], _kept, receipt: None });
        }
        Ok(())
    }

    /// Begins to send a frame; if that fails, its rank hears it.
    fn send(&mut self, lane: Lane, frame: OutgoingFrame) {
        let OutgoingFrame { header, message, receipt } = frame;
        let (mut operations, mut copies) = (Vec::new(), Vec::new());
        let mut copied = header.to_vec();
        let mut begin = |bytes: &[u8]| -> io::Result<()> {
            // SAFETY: what is sent are vectors of the message and buffers, which are kept until the operations
            // are complete; moving a message or a `Vec` does not move its elements.
            operations.push(unsafe { self.world.send(bytes, lane.0, lane.1)? });
            Ok(())
        };
        let begun = frame::slices(&message).into_iter().try_for_each(|part| {
            if part.len() < DIRECT_BYTES {
                copied.extend_from_slice(part);
                return Ok(());
            }
            if !copied.is_empty() {
                begin(&copied)?;
                copies.push(std::mem::take(&mut copied));
            }
            part.chunks(LONGEST).try_for_each(&mut begin)
        });
        let begun = begun.and_then(|()| if copied.is_empty() { Ok(()) } else { begin(&copied) });
        copies.push(copied);
        if let Err(error) = begun {
            receipt.give(Err(error));
            // What was begun still reads from them.
            self.sending.push(Sending {
                operations,
                _kept: (copies, Some(message)),
                receipt: None,
            });
            return;
        }
        let (_kept, receipt) = ((copies, Some(message)), Some(receipt));
        self.sending.push(Sending { operations, _kept, receipt });
    }

    /// Lets MPI work, and takes what it has finished; whether there was anything.
    fn advance(&mut self) -> io::Result<bool> {
        let mut moved = self.finish_sends()?;
        while let Some(matched) = self.world.next()? {
            moved = true;
            if matched.tag == WORDS {
                let process = matched.process;
                self.words.push((process, stage(matched)?));
            } else {
                let lane = (matched.process, matched.tag);
                self.lanes.entry(lane).or_default().matched.push_back(matched);
            }
        }
        moved |= self.hear_words()?;
        for state in self.lanes.values_mut() {
            moved |= state.advance(self.is_ending)?;
        }
        Ok(moved)
    }

    fn finish_sends(&mut self) -> io::Result<bool> {
        let before = self.sending.len();
        let mut failed = None;
        self.sending.retain_mut(|sending| {
            let mut is_complete = true;
            for operation in &mut sending.operations {
                match operation.is_complete() {
                    Ok(complete) => is_complete &= complete,
                    Err(error) => failed = Some(error),
                }
            }
            if is_complete && let Some(receipt) = &sending.receipt {
                receipt.give(Ok(()));
            }
            !is_complete
        });
        failed.map_or(Ok(self.sending.len() < before), Err)
    }

    fn hear_words(&mut self) -> io::Result<bool> {
        let mut heard = Vec::new();
        let mut waiting = Vec::new();
        for (process, mut incoming) in self.words.drain(..) {
            if incoming.operation.is_complete()? {
                heard.push((process, incoming.target));
            } else {
                waiting.push((process, incoming));
            }
        }
        self.words = waiting;
        for (process, target) in &heard {
            let ReceiveTarget::Staged(bytes) = target else { continue };
            let word = SetupWord::decode(bytes).ok_or_else(|| {
                io::Error::other(format!("MPI's process {process} speaks another language"))
            })?;
            self.board.update(|heard| match word {
                SetupWord::Meeting(places) => heard.meeting = Some(places),
                SetupWord::Here { run, ranks } => drop(heard.here.insert(*process, (run, ranks))),
                SetupWord::Bye => drop(heard.byes.insert(*process)),
            });
        }
        Ok(!heard.is_empty())
    }

    /// Whether everybody has said goodbye, and nothing is on its way.
    fn has_ended(&self) -> bool {
        if !self.is_ending || !self.sending.is_empty() || !self.words.is_empty() {
            return false;
        }
        let is_quiet = |lane: &LaneState| lane.incoming.is_none() && lane.matched.is_empty();
        self.board.byes() + 1 == usize::try_from(self.world.processes()).unwrap_or(0)
            && self.lanes.values().all(is_quiet)
    }
}

/// Begins to receive a message into a buffer.
fn stage(matched: Matched) -> io::Result<Incoming> {
    let mut buffer = vec![0; matched.bytes];
    // SAFETY: the buffer's memory stays where it is, and is touched again when the operation is complete.
    let operation = unsafe { matched.receive(&mut buffer)? };
    Ok(Incoming { operation, target: ReceiveTarget::Staged(buffer) })
}

impl LaneState {
    /// Takes what has arrived, in its order; whether there was anything. At the end of a run, what nobody has
    /// attached itself for is dropped.
    fn advance(&mut self, is_ending: bool) -> io::Result<bool> {
        if self.reception.is_none() && !is_ending {
            return Ok(false);
        }
        let mut moved = false;
        loop {
            if let Some(incoming) = &mut self.incoming {
                if !incoming.operation.is_complete()? {
                    return Ok(moved);
                }
                let Some(Incoming { target, .. }) = self.incoming.take() else { continue };
                moved = true;
                self.take(target);
            }
            let Some(matched) = self.matched.pop_front() else { return Ok(moved) };
            self.incoming = Some(self.receive(matched)?);
        }
    }

    /// Begins to receive: into the vector that is being filled if the whole message belongs there.
    fn receive(&mut self, matched: Matched) -> io::Result<Incoming> {
        let bytes = matched.bytes;
        if let Some(reception) = self.reception.as_mut().filter(|_| !self.is_over) {
            let spare = reception.decoder.spare();
            if bytes >= DIRECT_BYTES && spare.len() >= bytes {
                // SAFETY: the decoder owns the vector, which does not move, and is not used again before the
                // operation is complete.
                let operation = unsafe { matched.receive(&mut spare[..bytes])? };
                return Ok(Incoming { operation, target: ReceiveTarget::Direct(bytes) });
            }
            if bytes > STAGED_BYTES {
                self.end(LinkError::Broken(io::Error::other("a vector that no frame announced")));
            }
        }
        stage(matched)
    }

    /// Takes what has been received.
    fn take(&mut self, target: ReceiveTarget) {
        let Some(reception) = self.reception.as_mut().filter(|_| !self.is_over) else { return };
        let mut bytes: &[u8] = match &target {
            ReceiveTarget::Direct(count) => {
                reception.decoder.advance(*count);
                &[]
            }
            ReceiveTarget::Staged(buffer) => buffer,
        };
        if let Err(error) = deliver(reception, &mut bytes) {
            self.end(error);
        }
    }

    /// No frame of this lane is taken any more.
    fn end(&mut self, error: LinkError) {
        self.is_over = true;
        if let Some(Reception { from, inbox, .. }) = &self.reception {
            let _ = inbox.send(Delivery::Ended { peer: *from, error });
        }
    }
}

/// Hands the frames that are complete to their rank.
fn deliver(reception: &mut Reception, bytes: &mut &[u8]) -> Result<(), LinkError> {
    let Reception { from, decoder, inbox } = reception;
    while let Some((sent_micros, message)) = next(decoder, bytes)? {
        // A rank that has ended needs no frames.
        let _ = inbox.send(Delivery::Frame { from: *from, sent_micros, message });
    }
    Ok(())
}

fn next(
    decoder: &mut Decoder,
    bytes: &mut &[u8],
) -> Result<Option<(u32, quelea_core::message::Message)>, LinkError> {
    let taken = decoder.take(bytes)?;
    Ok(taken.map(|(header, message)| (header.sent_micros, message)))
}
