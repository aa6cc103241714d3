//! Reading from a connection: headers, and bodies to where they go.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};

use quelea_control::{REASON_CHARS, shown};

use super::super::TensorMemory;
use super::super::frame::{HEADER_BYTES, Kind, TensorHeader, Ticket};
use super::{Event, Link, Posted, Side, State};

/// The longest reason for a failure that is read.
const REASON_BYTES: u64 = 64 << 10;
/// How many calls a peer may be ahead, in announcements of memory and in offers.
const AHEAD_MAX: usize = 1 << 16;
/// How much is read of one connection before the others have a turn.
const BYTES_PER_TURN: usize = 2 << 20;

/// What is being read.
#[derive(Debug)]
pub(super) enum Input {
    Header { bytes: [u8; HEADER_BYTES], filled: usize },
    Tensor { memory: TensorMemory, filled: usize, ticket: Ticket },
    Owned { header: TensorHeader, bytes: Vec<u8>, filled: usize },
    Discarded { left: usize },
}

pub(super) const NO_HEADER: Input = Input::Header { bytes: [0; HEADER_BYTES], filled: 0 };

impl Link {
    /// Reads what has come.
    pub(in super::super) fn read(&mut self, events: &mut Vec<Event>) {
        let mut budget = BYTES_PER_TURN;
        while budget > 0 && !self.is_lost() {
            match self.read_once() {
                Ok(0) => return self.lose("its process has ended".into()),
                Ok(count) => {
                    budget = budget.saturating_sub(count);
                    if let Err(reason) = self.complete_input(events) {
                        return self.lose(reason);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.lose(reason_of(&error)),
            }
        }
    }

    fn read_once(&mut self) -> io::Result<usize> {
        if let Input::Discarded { left } = &mut self.input {
            let mut bytes = [0; 4096];
            let most = bytes.len().min(*left);
            let count = self.stream.read(&mut bytes[..most])?;
            *left -= count;
            return Ok(count);
        }
        let (buffer, filled) = match &mut self.input {
            Input::Header { bytes, filled } => (&mut bytes[*filled..], filled),
            Input::Tensor { memory, filled, .. } => {
                // SAFETY: announced by a receive that is not complete, so lent to it alone.
                (&mut unsafe { memory.as_mut_slice() }[*filled..], filled)
            }
            Input::Owned { bytes, filled, .. } => (&mut bytes[*filled..], filled),
            Input::Discarded { .. } => unreachable!("read above"),
        };
        let count = self.stream.read(buffer)?;
        *filled += count;
        Ok(count)
    }

    /// Uses what is completely there; bodies without bytes are complete at once.
    fn complete_input(&mut self, events: &mut Vec<Event>) -> Result<(), String> {
        if let Input::Header { bytes, filled: HEADER_BYTES } = self.input {
            self.input = NO_HEADER;
            self.use_header(TensorHeader::decode(&bytes)?, events)?;
        }
        match &self.input {
            Input::Tensor { memory, filled, ticket } if *filled == memory.bytes() => {
                events.push(Event::Done(*ticket));
                self.input = NO_HEADER;
            }
            Input::Owned { bytes, filled, .. } if *filled == bytes.len() => {
                let taken = std::mem::replace(&mut self.input, NO_HEADER);
                if let Input::Owned { header, bytes, .. } = taken {
                    self.use_body(header, bytes, events);
                }
            }
            Input::Discarded { left: 0 } => self.input = NO_HEADER,
            _ => {}
        }
        Ok(())
    }

    fn use_header(&mut self, header: TensorHeader, events: &mut Vec<Event>) -> Result<(), String> {
        let TensorHeader { kind, call, key, bytes, .. } = header;
        match kind {
            Kind::Ready | Kind::Offer if self.announced.max(self.offers.len()) >= AHEAD_MAX => {
                return Err(format!("it is more than {AHEAD_MAX} calls ahead"));
            }
            Kind::Ready => {
                self.announced += 1;
                self.ready.entry(key).or_default().push_back(Side { call, bytes });
                self.match_sends(key, events);
            }
            Kind::Offer => {
                self.count_offer(key, 1);
                events.push(Event::Offered(key));
            }
            Kind::Data => {
                let receives = self.receives.get_mut(&key);
                let posted = receives.and_then(VecDeque::pop_front);
                if self.receives.get(&key).is_some_and(VecDeque::is_empty) {
                    self.receives.remove(&key);
                }
                let Posted { memory, ticket, .. } = posted
                    .filter(|posted| posted.memory.bytes() as u64 == bytes)
                    .ok_or("it sent a tensor that nobody has announced memory for")?;
                self.input = Input::Tensor { memory, filled: 0, ticket };
            }
            Kind::Failed if bytes > REASON_BYTES => {
                return Err(format!("it sent a reason of {bytes} bytes"));
            }
            Kind::Leave => self.state = State::Left,
            Kind::Get if bytes > 0 => return Err(format!("it sent a request of {bytes} bytes")),
            Kind::Put | Kind::Accumulate | Kind::Answer if bytes > 0 => {
                // No memory is taken on the word of a header.
                self.input = match self.windows.check_length(key, bytes) {
                    Ok(()) => Input::Owned { header, bytes: vec![0; bytes as usize], filled: 0 },
                    Err(reason) => {
                        events.push(Event::WindowRefused(reason));
                        Input::Discarded { left: usize::try_from(bytes).unwrap_or(usize::MAX) }
                    }
                };
            }
            Kind::Failed | Kind::Put | Kind::Accumulate | Kind::Get | Kind::Answer => {
                self.input = Input::Owned { header, bytes: vec![0; bytes as usize], filled: 0 };
            }
        }
        Ok(())
    }

    fn use_body(&mut self, header: TensorHeader, bytes: Vec<u8>, events: &mut Vec<Event>) {
        if header.kind == Kind::Failed {
            let reason = shown(&String::from_utf8_lossy(&bytes), REASON_CHARS);
            events.push(Event::Failed(reason));
            return;
        }
        if header.kind == Kind::Answer {
            self.requests.remove(&header.number);
        }
        events.push(Event::Window { header, bytes });
    }
}

pub(super) fn reason_of(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => "its process has ended".into(),
        _ => error.to_string(),
    }
}
