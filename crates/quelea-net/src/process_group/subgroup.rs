//! Some of a group's processes as a group of their own, as the replicas of one shard of a model are.
//!
//! The first of them listens, and says where through the whole group; the others go there.

use std::net::{IpAddr, Ipv4Addr};

use super::meeting::{HubListener, gather_at};
use super::{
    Given, GroupCall, KeepWaiting, Participants, ProcessGroup, ProcessGroupError, refused,
};
use crate::launcher::{Launched, Rendezvous};
use crate::protocol::Wait;
use crate::trust::Security;

impl ProcessGroup {
    /// The processes `members` as a group of their own, whose ranks are their places in the list. All
    /// processes of this group make the call together, each with the list that it is in, and find each
    /// other within the limit of the call.
    pub fn subgroup(
        &mut self,
        call: GroupCall<'_>,
        members: &[u32],
        security: &Security,
        keep_waiting: KeepWaiting<'_>,
    ) -> Result<ProcessGroup, ProcessGroupError> {
        let mine = members.iter().position(|member| *member == self.rank);
        let hub = match mine {
            Some(0) if members.len() > 1 => Some(self.sub_hub()?),
            _ => None,
        };
        let said = Member { members: members.to_vec(), at: self.place_of(hub.as_ref())? };
        // All processes take part, so the lines come in the order of ranks.
        let call = GroupCall { participants: Participants::All, ..call };
        let lines = |all: Vec<Given>| places(all.into_iter().map(|given| given.bytes).collect());
        let answer = self.together(call, said.to_line().into_bytes(), lines, &mut *keep_waiting)?;
        let position = mine.ok_or_else(|| refused(not_in(self.rank, members)))?;
        if members.len() == 1 {
            return Ok(ProcessGroup::alone());
        }
        let answer = String::from_utf8_lossy(&answer);
        let at = answer.lines().nth(members[0] as usize).unwrap_or_default();
        let launched = Launched {
            rank: position as u32,
            world: members.len() as u32,
            rendezvous: Rendezvous::Address(self.seen_from_here(at)),
            local_rank: None,
            local_size: None,
            launcher: "quelea",
        };
        let seconds = call.limit.as_secs_f64();
        match hub {
            Some(hub) => {
                let wait = Wait::new(seconds, "the other processes");
                gather_at(hub, &launched, security, wait, keep_waiting)
            }
            None => ProcessGroup::open(&launched, security, seconds, keep_waiting),
        }
    }

    /// Loopback unless processes of this group are on other machines.
    fn sub_hub(&self) -> Result<HubListener, ProcessGroupError> {
        let all = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let ip = if self.address.is_loopback() { self.address } else { all };
        HubListener::bind(ip, 0, "a smaller group")
    }

    /// Where a hub of this process is reached: its port alone at rank 0, which everybody else knows how
    /// to reach; nothing without a hub.
    fn place_of(&self, hub: Option<&HubListener>) -> Result<String, ProcessGroupError> {
        let Some(hub) = hub else { return Ok(String::new()) };
        let port = hub.port()?;
        if self.rank == 0 {
            return Ok(format!(":{port}"));
        }
        // This machine's address on the way to rank 0 is one that the others can use as well.
        let hub = self.peers.get(&0).ok_or_else(|| refused("rank 0 is gone"))?;
        let own = hub.local_addr();
        let own = own.map_err(|error| refused(error.to_string()))?.ip();
        Ok(std::net::SocketAddr::new(own, port).to_string())
    }

    fn seen_from_here(&self, at: &str) -> String {
        match at.strip_prefix(':').and_then(|port| port.parse().ok()) {
            Some(port) => std::net::SocketAddr::new(self.address, port).to_string(),
            None => at.to_string(),
        }
    }
}

/// What a process says of the smaller group that it is in.
#[derive(Debug, PartialEq, Eq)]
struct Member {
    members: Vec<u32>,
    /// Where it listens for the others of its group, if it is the first.
    at: String,
}

impl Member {
    fn to_line(&self) -> String {
        let members: Vec<String> = self.members.iter().map(u32::to_string).collect();
        format!("{} {}", members.join(","), self.at)
    }

    fn from_line(line: &[u8]) -> Option<Member> {
        let (members, at) = std::str::from_utf8(line).ok()?.split_once(' ')?;
        let members = members.split(',').map(|member| member.parse().ok());
        // An address has no white space: it becomes a line of the answer.
        let at = (!at.contains(char::is_whitespace)).then(|| at.to_string())?;
        Some(Member { members: members.collect::<Option<_>>()?, at })
    }
}

/// Where everybody listens, one line for each rank; an error unless everybody is in one list, which all
/// in it have given.
fn places(all: Vec<Vec<u8>>) -> Result<Vec<u8>, String> {
    let mut said = Vec::new();
    for (rank, line) in all.iter().enumerate() {
        let member = Member::from_line(line);
        said.push(member.ok_or_else(|| format!("rank {rank} has named no group that it is in"))?);
    }
    for (rank, one) in said.iter().enumerate() {
        if !one.members.contains(&(rank as u32)) {
            return Err(not_in(rank as u32, &one.members));
        }
        let mut sorted = one.members.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != one.members.len() {
            return Err(format!(
                "rank {rank} has named a group with a rank twice: {:?}",
                one.members
            ));
        }
        for member in &one.members {
            let other = said.get(*member as usize).ok_or_else(|| {
                format!("rank {rank} has named rank {member}, of {} ranks", said.len())
            })?;
            if other.members != one.members {
                return Err(format!(
                    "rank {rank} has named the group {:?}, but rank {member} the group {:?}",
                    one.members, other.members
                ));
            }
        }
    }
    let places: Vec<&str> = said.iter().map(|one| one.at.as_str()).collect();
    Ok(places.join("\n").into_bytes())
}

fn not_in(rank: u32, members: &[u32]) -> String {
    format!("rank {rank} has named the group {members:?}, which it is not in")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(members: &[u32], at: &str) -> Vec<u8> {
        Member { members: members.to_vec(), at: at.into() }.to_line().into_bytes()
    }

    #[test]
    fn the_places_of_two_groups_come_by_rank() {
        let said = vec![
            line(&[0, 2], ":7"),
            line(&[1, 3], "10.0.0.2:8"),
            line(&[0, 2], ""),
            line(&[1, 3], ""),
        ];
        assert_eq!(places(said), Ok(b":7\n10.0.0.2:8\n\n".to_vec()));
    }

    #[test]
    fn groups_that_do_not_fit_together_are_refused_by_rank() {
        let cases = [
            (
                vec![line(&[0, 1], ""), line(&[1], "")],
                "rank 0 has named the group [0, 1], but rank 1",
            ),
            (
                vec![line(&[1], ""), line(&[1], "")],
                "rank 0 has named the group [1], which it is not in",
            ),
            (vec![line(&[0, 9], "")], "rank 0 has named rank 9, of 1 ranks"),
            (vec![line(&[0, 0], "")], "rank 0 has named a group with a rank twice"),
            (vec![b"0 a b".to_vec()], "rank 0 has named no group"),
            (vec![b"".to_vec()], "rank 0 has named no group"),
        ];
        for (said, expected) in cases {
            let refused = places(said).expect_err(expected);
            assert!(refused.starts_with(expected), "{refused}");
        }
    }
}
