//! Who may come in, and what he may take: ACLs, quotas, passwords, SASL.

use bytes::Bytes;

messages! {
    DescribeAclsRequest {
        resource_type_filter: i8,
        resource_name_filter: Option<String>,
        pattern_type_filter: i8 = 3,
        principal_filter: Option<String>,
        host_filter: Option<String>,
        operation: i8,
        permission_type: i8,
    }
    DescribeAclsResponse {
        throttle_time_ms: i32,
        error_code: i16,
        error_message: Option<String>,
        resources: Vec<DescribeAclsResource>,
    }
    DescribeAclsResource {
        resource_type: i8,
        resource_name: String,
        pattern_type: i8 = 3,
        acls: Vec<AclDescription>,
    }
    AclDescription {
        principal: String,
        host: String,
        operation: i8,
        permission_type: i8,
    }
    CreateAclsRequest {
        creations: Vec<AclCreation>,
    }
    AclCreation {
        resource_type: i8,
        resource_name: String,
        resource_pattern_type: i8 = 3,
        principal: String,
        host: String,
        operation: i8,
        permission_type: i8,
    }
    CreateAclsResponse {
        throttle_time_ms: i32,
        results: Vec<AclCreationResult>,
    }
    AclCreationResult {
        error_code: i16,
        error_message: Option<String>,
    }
    DeleteAclsRequest {
        filters: Vec<DeleteAclsFilter>,
    }
    DeleteAclsFilter {
        resource_type_filter: i8,
        resource_name_filter: Option<String>,
        pattern_type_filter: i8 = 3,
        principal_filter: Option<String>,
        host_filter: Option<String>,
        operation: i8,
        permission_type: i8,
    }
    DeleteAclsResponse {
        throttle_time_ms: i32,
        filter_results: Vec<DeleteAclsFilterResult>,
    }
    DeleteAclsFilterResult {
        error_code: i16,
        error_message: Option<String>,
        matching_acls: Vec<DeleteAclsMatchingAcl>,
    }
    DeleteAclsMatchingAcl {
        error_code: i16,
        error_message: Option<String>,
        resource_type: i8,
        resource_name: String,
        pattern_type: i8 = 3,
        principal: String,
        host: String,
        operation: i8,
        permission_type: i8,
    }
    DescribeClientQuotasRequest {
        components: Vec<ComponentData>,
        strict: bool,
    }
    ComponentData {
        entity_type: String,
        match_type: i8,
        match_kind: Option<String>,
    }
    DescribeClientQuotasResponse {
        throttle_time_ms: i32,
        error_code: i16,
        error_message: Option<String>,
        entries: Option<Vec<EntryData>>,
    }
    EntryData {
        entity: Vec<EntityData>,
        values: Vec<ValueData>,
    }
    EntityData {
        entity_type: String,
        entity_name: Option<String>,
    }
    ValueData {
        key: String,
        value: f64,
    }
    AlterClientQuotasRequest {
        entries: Vec<AlterClientQuotasEntry>,
        validate_only: bool,
    }
    AlterClientQuotasEntry {
        entity: Vec<EntityData>,
        ops: Vec<AlterClientQuotasOp>,
    }
    AlterClientQuotasOp {
        key: String,
        value: f64,
        remove: bool,
    }
    AlterClientQuotasResponse {
        throttle_time_ms: i32,
        entries: Vec<AlterClientQuotasResult>,
    }
    AlterClientQuotasResult {
        error_code: i16,
        error_message: Option<String>,
        entity: Vec<EntityData>,
    }
    DescribeUserScramCredentialsRequest {
        users: Option<Vec<ScramUserName>>,
    }
    ScramUserName {
        name: String,
    }
    DescribeUserScramCredentialsResponse {
        throttle_time_ms: i32,
        error_code: i16,
        error_message: Option<String>,
        results: Vec<DescribeUserScramCredentialsResult>,
    }
    DescribeUserScramCredentialsResult {
        user: String,
        error_code: i16,
        error_message: Option<String>,
        credential_infos: Vec<CredentialInfo>,
    }
    CredentialInfo {
        mechanism: i8,
        iterations: i32,
    }
    AlterUserScramCredentialsRequest {
        deletions: Vec<ScramCredentialDeletion>,
        upsertions: Vec<ScramCredentialUpsertion>,
    }
    ScramCredentialDeletion {
        name: String,
        mechanism: i8,
    }
    ScramCredentialUpsertion {
        name: String,
        mechanism: i8,
        iterations: i32,
        salt: Bytes,
        salted_password: Bytes,
    }
    AlterUserScramCredentialsResponse {
        throttle_time_ms: i32,
        results: Vec<AlterUserScramCredentialsResult>,
    }
    AlterUserScramCredentialsResult {
        user: String,
        error_code: i16,
        error_message: Option<String>,
    }
    SaslHandshakeRequest {
        mechanism: String,
    }
    SaslHandshakeResponse {
        error_code: i16,
        mechanisms: Vec<String>,
    }
    SaslAuthenticateRequest {
        auth_bytes: Bytes,
    }
    SaslAuthenticateResponse {
        error_code: i16,
        error_message: Option<String>,
        auth_bytes: Bytes,
        session_lifetime_ms: i64 [1..],
    }
}
