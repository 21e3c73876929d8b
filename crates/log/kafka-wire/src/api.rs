//! Which APIs there are, in which versions.

use std::ops::RangeInclusive;

use crate::messages::cluster::*;
use crate::messages::configs::*;
use crate::messages::fetch::*;
use crate::messages::groups::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, DeleteGroupsRequest, DeleteGroupsResponse,
    DescribeGroupsRequest, DescribeGroupsResponse, ListGroupsRequest, ListGroupsResponse,
};
use crate::messages::membership::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, HeartbeatRequest, HeartbeatResponse,
    JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse, SyncGroupRequest,
    SyncGroupResponse,
};
use crate::messages::offsets::*;
use crate::messages::produce::*;
use crate::messages::replicas::*;
use crate::messages::security::*;
use crate::messages::topics::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreateTopicsRequest, CreateTopicsResponse,
    DeleteRecordsRequest, DeleteRecordsResponse, DeleteTopicsRequest, DeleteTopicsResponse,
    DescribeLogDirsRequest, DescribeLogDirsResponse, DescribeProducersRequest, DescribeProducersResponse,
};
use crate::wire::Wire;

/// A request, and which response answers it.
pub trait ApiRequest: Wire {
    /// Its API.
    const API: Api;
    /// What answers it.
    type Response: Wire;
}

/// Of APIs whose versions are all in the plain form.
const NEVER: i16 = i16::MAX;

macro_rules! apis {
    ($($number:literal $name:ident: $versions:expr, flexible from $flexible:expr, $request:ident -> $response:ident;)*) => {
        /// An API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs)] // named as in Kafka's protocol guide
        pub enum Api {
            $($name = $number,)*
        }

        impl Api {
            /// All that are answered, by number.
            pub const ALL: &'static [Api] = &[$(Api::$name,)*];

            /// The one with this number.
            pub fn from_number(number: i16) -> Option<Self> {
                match number {
                    $($number => Some(Api::$name),)*
                    _ => None,
                }
            }

            /// Its number.
            pub const fn number(self) -> i16 {
                self as i16
            }

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Api::$name => stringify!($name),)*
                }
            }

            /// The versions that are answered: those of Apache Kafka 4.3, which gave up what clients before 2.1 spoke.
            pub const fn versions(self) -> RangeInclusive<i16> {
                match self {
                    $(Api::$name => $versions,)*
                }
            }

            /// Whether a version is in the flexible form.
            pub const fn is_flexible(self, version: i16) -> bool {
                match self {
                    $(Api::$name => version >= $flexible,)*
                }
            }
        }

        $(impl ApiRequest for $request {
            const API: Api = Api::$name;
            type Response = $response;
        })*

        /// Calls `$do!(Request)` for every request, in the tests.
        #[cfg(any(test, feature = "fuzz"))]
        macro_rules! for_each_request {
            ($do:ident) => { $($do!($request);)* };
        }
        #[cfg(any(test, feature = "fuzz"))]
        pub(crate) use for_each_request;
    };
}

apis! {
    0 Produce: 3..=13, flexible from 9, ProduceRequest -> ProduceResponse;
    1 Fetch: 4..=18, flexible from 12, FetchRequest -> FetchResponse;
    2 ListOffsets: 1..=11, flexible from 6, ListOffsetsRequest -> ListOffsetsResponse;
    3 Metadata: 0..=13, flexible from 9, MetadataRequest -> MetadataResponse;
    8 OffsetCommit: 2..=10, flexible from 8, OffsetCommitRequest -> OffsetCommitResponse;
    9 OffsetFetch: 1..=10, flexible from 6, OffsetFetchRequest -> OffsetFetchResponse;
    10 FindCoordinator: 0..=6, flexible from 3, FindCoordinatorRequest -> FindCoordinatorResponse;
    11 JoinGroup: 0..=9, flexible from 6, JoinGroupRequest -> JoinGroupResponse;
    12 Heartbeat: 0..=4, flexible from 4, HeartbeatRequest -> HeartbeatResponse;
    13 LeaveGroup: 0..=5, flexible from 4, LeaveGroupRequest -> LeaveGroupResponse;
    14 SyncGroup: 0..=5, flexible from 4, SyncGroupRequest -> SyncGroupResponse;
    15 DescribeGroups: 0..=6, flexible from 5, DescribeGroupsRequest -> DescribeGroupsResponse;
    16 ListGroups: 0..=5, flexible from 3, ListGroupsRequest -> ListGroupsResponse;
    17 SaslHandshake: 0..=1, flexible from NEVER, SaslHandshakeRequest -> SaslHandshakeResponse;
    18 ApiVersions: 0..=4, flexible from 3, ApiVersionsRequest -> ApiVersionsResponse;
    19 CreateTopics: 2..=7, flexible from 5, CreateTopicsRequest -> CreateTopicsResponse;
    20 DeleteTopics: 1..=6, flexible from 4, DeleteTopicsRequest -> DeleteTopicsResponse;
    21 DeleteRecords: 0..=2, flexible from 2, DeleteRecordsRequest -> DeleteRecordsResponse;
    22 InitProducerId: 0..=5, flexible from 2, InitProducerIdRequest -> InitProducerIdResponse;
    23 OffsetForLeaderEpoch: 2..=4, flexible from 4, OffsetForLeaderEpochRequest -> OffsetForLeaderEpochResponse;
    29 DescribeAcls: 1..=3, flexible from 2, DescribeAclsRequest -> DescribeAclsResponse;
    30 CreateAcls: 1..=3, flexible from 2, CreateAclsRequest -> CreateAclsResponse;
    31 DeleteAcls: 1..=3, flexible from 2, DeleteAclsRequest -> DeleteAclsResponse;
    32 DescribeConfigs: 1..=4, flexible from 4, DescribeConfigsRequest -> DescribeConfigsResponse;
    33 AlterConfigs: 0..=2, flexible from 2, AlterConfigsRequest -> AlterConfigsResponse;
    34 AlterReplicaLogDirs: 1..=2, flexible from 2, AlterReplicaLogDirsRequest -> AlterReplicaLogDirsResponse;
    35 DescribeLogDirs: 1..=5, flexible from 2, DescribeLogDirsRequest -> DescribeLogDirsResponse;
    36 SaslAuthenticate: 0..=2, flexible from 2, SaslAuthenticateRequest -> SaslAuthenticateResponse;
    37 CreatePartitions: 0..=3, flexible from 2, CreatePartitionsRequest -> CreatePartitionsResponse;
    42 DeleteGroups: 0..=2, flexible from 2, DeleteGroupsRequest -> DeleteGroupsResponse;
    43 ElectLeaders: 0..=2, flexible from 2, ElectLeadersRequest -> ElectLeadersResponse;
    44 IncrementalAlterConfigs: 0..=1, flexible from 1, IncrementalAlterConfigsRequest -> IncrementalAlterConfigsResponse;
    45 AlterPartitionReassignments: 0..=1, flexible from 0, AlterPartitionReassignmentsRequest -> AlterPartitionReassignmentsResponse;
    46 ListPartitionReassignments: 0..=0, flexible from 0, ListPartitionReassignmentsRequest -> ListPartitionReassignmentsResponse;
    47 OffsetDelete: 0..=0, flexible from i16::MAX, OffsetDeleteRequest -> OffsetDeleteResponse;
    48 DescribeClientQuotas: 0..=1, flexible from 1, DescribeClientQuotasRequest -> DescribeClientQuotasResponse;
    49 AlterClientQuotas: 0..=1, flexible from 1, AlterClientQuotasRequest -> AlterClientQuotasResponse;
    50 DescribeUserScramCredentials: 0..=0, flexible from 0, DescribeUserScramCredentialsRequest -> DescribeUserScramCredentialsResponse;
    51 AlterUserScramCredentials: 0..=0, flexible from 0, AlterUserScramCredentialsRequest -> AlterUserScramCredentialsResponse;
    55 DescribeQuorum: 0..=2, flexible from 0, DescribeQuorumRequest -> DescribeQuorumResponse;
    57 UpdateFeatures: 0..=2, flexible from 0, UpdateFeaturesRequest -> UpdateFeaturesResponse;
    60 DescribeCluster: 0..=2, flexible from 0, DescribeClusterRequest -> DescribeClusterResponse;
    61 DescribeProducers: 0..=0, flexible from 0, DescribeProducersRequest -> DescribeProducersResponse;
    68 ConsumerGroupHeartbeat: 0..=1, flexible from 0, ConsumerGroupHeartbeatRequest -> ConsumerGroupHeartbeatResponse;
    69 ConsumerGroupDescribe: 0..=1, flexible from 0, ConsumerGroupDescribeRequest -> ConsumerGroupDescribeResponse;
    74 ListConfigResources: 0..=1, flexible from 0, ListConfigResourcesRequest -> ListConfigResourcesResponse;
    75 DescribeTopicPartitions: 0..=0, flexible from 0, DescribeTopicPartitionsRequest -> DescribeTopicPartitionsResponse;
}
