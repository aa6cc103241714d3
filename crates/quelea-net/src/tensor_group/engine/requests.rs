//! Requests to windows of other ranks, and their requests to those of this one.

use std::sync::Arc;
use std::time::Instant;

use super::super::frame::{Kind, TensorHeader};
use super::super::submitted::Pending;
use super::super::windows::WindowRequest;
use super::Engine;

impl Engine {
    /// Sends a request; it is complete when the answer is here.
    pub(super) fn request(
        &mut self,
        peer: usize,
        window: u64,
        request: WindowRequest,
        pending: Arc<Pending>,
        due: Instant,
    ) -> Result<(), String> {
        let (kind, body) = match request {
            WindowRequest::Put(tensor) => (Kind::Put, tensor),
            WindowRequest::Accumulate(tensor) => (Kind::Accumulate, tensor),
            WindowRequest::Get => (Kind::Get, Vec::new()),
        };
        let ticket = self.ticket();
        // Numbers repeat after four billion requests, long after their answers.
        let number = ticket as u32;
        let asked = self.link(peer).map(|link| link.request(kind, window, number, body));
        self.numbers.insert((peer, number), ticket);
        self.keep_tagged(asked.map(|()| ticket), pending, Some(peer), due)
    }

    /// Carries out what another rank asks, or takes its answer.
    pub(super) fn use_window(
        &mut self,
        peer: usize,
        header: TensorHeader,
        bytes: &[u8],
    ) -> Result<(), String> {
        let TensorHeader { kind, number, key: window, .. } = header;
        let done = match kind {
            Kind::Put => self.windows.receive(window, peer, bytes, false).map(|()| Vec::new()),
            Kind::Accumulate => {
                self.windows.receive(window, peer, bytes, true).map(|()| Vec::new())
            }
            Kind::Get => self.windows.own(window),
            _ => {
                if let Some(ticket) = self.numbers.remove(&(peer, number)) {
                    self.open.remove(&ticket);
                }
                let got = if bytes.is_empty() {
                    Ok(())
                } else {
                    self.windows.receive(window, peer, bytes, false)
                };
                return got.map_err(|reason| self.window_failed(peer, &reason));
            }
        };
        let answer = done.map_err(|reason| self.window_failed(peer, &reason))?;
        if let Ok(link) = self.link(peer) {
            link.answer(window, number, answer);
        }
        Ok(())
    }

    pub(super) fn window_failed(&self, peer: usize, reason: &str) -> String {
        let (own, name) = (self.names[self.rank], self.names[peer]);
        format!("a call on a window between rank {name} and rank {own}: {reason}")
    }
}
