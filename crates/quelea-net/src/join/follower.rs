//! A joined process during the run: passes on what its rank says to whoever controls the run, and has its part in
//! who that is.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use quelea_control::{MissingQuorum, RankEvent};

use super::command_reader::CommandLine;
use super::event_writer::EventWriter;
use super::survivor::{NextStep, Survivor};
use crate::controller::Incoming;

/// Why a joined process ends before its time.
pub(super) enum JoinEnd {
    /// The controller has ended the run.
    Aborted(String),
    /// The coordinator is gone, and nobody takes over.
    Gone(String),
    /// Too few others are within reach.
    NoQuorum(MissingQuorum),
}

/// The controller that is followed.
struct FollowedController {
    line: u32,
    writer: EventWriter,
}

/// What a joined process does during the run.
pub(super) struct Follower<'a> {
    process: Sender<Incoming>,
    followed: Option<FollowedController>,
    /// The run has ended well.
    has_ended: bool,
    /// Its part in who controls the run, where that may change.
    survivor: Option<Survivor<'a>>,
}

impl<'a> Follower<'a> {
    /// Follows the coordinator at the other end of `line`.
    pub(super) fn new(
        line: &CommandLine,
        process: Sender<Incoming>,
        survivor: Option<Survivor<'a>>,
    ) -> io::Result<Follower<'a>> {
        let mut follower = Follower { process, followed: None, has_ended: false, survivor };
        follower.follow(line)?;
        Ok(follower)
    }

    fn follow(&mut self, line: &CommandLine) -> io::Result<()> {
        let writer = EventWriter::new(line.line, &line.stream, self.process.clone())?;
        self.followed = Some(FollowedController { line: line.line, writer });
        Ok(())
    }

    /// Passes on what the rank says, until somebody has everybody's report. Writing may wait for the
    /// controller; this does not, so that it hears when there is none any more.
    pub(super) fn serve(mut self, incoming: &Receiver<Incoming>) -> Result<(), JoinEnd> {
        loop {
            let word = match self.survivor.as_ref().and_then(Survivor::next_deadline) {
                None => incoming.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(left) => incoming.recv_timeout(left.max(Duration::from_millis(1))),
            };
            let ended = match word {
                Ok(word) => self.hear(word),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(JoinEnd::Gone("its events are no longer read".into()));
                }
            };
            if let Some(ended) = ended.or_else(|| self.attend(incoming)) {
                return ended;
            }
        }
    }

    fn hear(&mut self, word: Incoming) -> Option<Result<(), JoinEnd>> {
        match word {
            Incoming::Event(event) => self.pass_on(event),
            Incoming::Aborted(reason) => return Some(Err(JoinEnd::Aborted(reason))),
            Incoming::Ended => self.has_ended = true,
            Incoming::LineEnded { line, reason } => return self.line_ended(line, reason),
            word => {
                if let Some(survivor) = &mut self.survivor {
                    survivor.hear(word, self.followed.is_some());
                }
            }
        }
        None
    }

    /// What the rank says.
    fn pass_on(&mut self, event: RankEvent) {
        if let Some(survivor) = &mut self.survivor {
            survivor.note(&event);
        }
        match (&mut self.followed, &mut self.survivor) {
            (Some(followed), _) => followed.writer.pass_on(event),
            (None, Some(survivor)) => survivor.keep(event),
            (None, None) => {}
        }
    }

    /// A line has ended; if it is that of the controller, another may take over.
    fn line_ended(&mut self, line: u32, reason: String) -> Option<Result<(), JoinEnd>> {
        let is_followed = |followed: &mut FollowedController| followed.line == line;
        let Some(followed) = self.followed.take_if(is_followed) else {
            self.survivor.iter_mut().for_each(|survivor| survivor.forget(line));
            return None;
        };
        // A process that left earlier, with words unread, could take its own report with it.
        let has_reported = followed.writer.finish();
        let Some(survivor) = self.survivor.as_mut().filter(|survivor| !survivor.has_left()) else {
            let ended = if has_reported { Ok(()) } else { Err(JoinEnd::Gone(reason)) };
            return Some(ended);
        };
        if self.has_ended {
            return Some(Ok(()));
        }
        survivor.lose_controller(line);
        None
    }

    /// Does what follows from who controls the run.
    fn attend(&mut self, incoming: &Receiver<Incoming>) -> Option<Result<(), JoinEnd>> {
        let survivor = self.survivor.as_mut()?;
        if survivor.changes_its_vote()
            && let Some(followed) = self.followed.take()
        {
            survivor.leave(followed.line);
            // Whoever is voted for next gets the report again.
            let _ = followed.writer.finish();
        }
        match survivor.attend() {
            NextStep::Wait => None,
            NextStep::Follow(line) => {
                let untold = survivor.take_untold();
                // Without a thread to write, this line is as good as gone.
                if let Err(error) = self.follow(&line) {
                    let reason = error.to_string();
                    let _ = self.process.send(Incoming::LineEnded { line: line.line, reason });
                }
                if let Some(followed) = &mut self.followed {
                    untold.into_iter().for_each(|event| followed.writer.pass_on(event));
                }
                None
            }
            NextStep::Lead(inheritance) => {
                survivor.lead(*inheritance, incoming);
                Some(Ok(()))
            }
            NextStep::End(missing) => {
                survivor.save_model(incoming);
                Some(Err(JoinEnd::NoQuorum(missing)))
            }
            NextStep::Stuck(reason) => Some(Err(JoinEnd::Gone(reason))),
        }
    }
}
